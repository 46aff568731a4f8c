"""Measures what this processor gives at most, with the threads of the native kernels."""

from __future__ import annotations

import mmap
import statistics
from collections.abc import Callable

import numpy as np

from xinheng.core.hal import Limits, MemoryStats

from .kernels import Library

PIECE = 1 << 20
"""The working set is a multiple of this; `PIECE` in csrc/limits.cpp."""
LARGEST = 1 << 29
"""Bytes of a working set that are read at most: far more than caches hold, and read in a few milliseconds."""
PASSES = 7
"""Of the memory, of which the median counts."""
STEPS = 100_000
"""Of twelve products each, about a millisecond."""


def measure_limits(library: Library, memory: MemoryStats, working_set: int) -> Limits:
    """Bandwidth over `working_set` bytes, up to half a gigabyte and a quarter of what is free, and arithmetic rates."""
    size = max(PIECE, min(working_set, LARGEST, memory.available // 4) // PIECE * PIECE)
    rates = {
        "float32": _best(library.measure_float32),
        "bfloat16": _best(library.measure_bfloat16),
        "int8": _best(library.measure_int8),
    }
    return Limits(_bandwidth(library, size), size, {kind: rate for kind, rate in rates.items() if rate > 0})


def _bandwidth(library: Library, size: int) -> float:
    pages = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    data = np.frombuffer(pages, np.uint8)
    data.fill(1)
    library.measure_read(data.ctypes.data, size)
    found = statistics.median(library.measure_read(data.ctypes.data, size) for _ in range(PASSES))
    del data
    pages.close()
    return float(found)


def _best(measure: Callable[[int], float]) -> float:
    """The best of five: whatever else ran only made it slower."""
    return max(measure(STEPS) for _ in range(5))
