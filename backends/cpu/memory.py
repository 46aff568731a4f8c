"""Memory for weights in huge pages, and file pages that are let go once their content has moved there."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

HUGE = 2 << 20
"""Bytes of a huge page."""
SLAB = 64 << 20
"""Bytes of address space asked for at a time; what is not touched takes no memory."""
PREFETCHED = 8192
"""Bytes behind an array that kernels may fetch but never use."""
ALIGNMENT = 64
POPULATE_READ = 22
"""`MADV_POPULATE_READ` of Linux, which the module `mmap` does not name."""


class Slabs:
    """Hands out zeroed memory from large areas in huge pages, where the system has them; small weights share pages.

    An area lives as long as an array in it.
    """

    def __init__(self) -> None:
        self._area: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0

    def zeros(self, size: int) -> NDArray[np.uint8]:
        """Zeroed bytes, uint8 [size], aligned to a cache line."""
        room = -(-(size + PREFETCHED) // ALIGNMENT) * ALIGNMENT
        if self._used + room > len(self._area):
            self._area, self._used = _area(max(room, SLAB)), 0
        start = self._used
        self._used += room
        return self._area[start : start + size]


def _area(size: int) -> NDArray[np.uint8]:
    if sys.platform != "linux":
        return np.zeros(size, np.uint8)
    memory = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    flat = np.frombuffer(memory, np.uint8)
    start = -flat.ctypes.data % HUGE
    return flat[start : start + size]


def forget(rows: NDArray[np.uint8]) -> None:
    """Let the system take the pages behind a view of a read-only file map; other arrays are left alone.

    The view stays valid: what is read again comes from the file.
    """
    found = _mapped(rows)
    if found is None:
        return
    owner, start = found
    first, last = -(-start // mmap.PAGESIZE), (start + rows.nbytes) // mmap.PAGESIZE
    if last > first:
        owner.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)


def prefault(rows: NDArray[np.uint8]) -> None:
    """Map the pages behind a view of a read-only file map in one call, which is cheaper than a fault for each few."""
    found = _mapped(rows)
    if found is None:
        return
    owner, start = found
    first, last = start // mmap.PAGESIZE, -(-(start + rows.nbytes) // mmap.PAGESIZE)
    with suppress(OSError):  # Linux before 5.14
        owner.madvise(POPULATE_READ, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)


def _mapped(rows: NDArray[np.uint8]) -> tuple[mmap.mmap, int] | None:
    """The read-only file map that contiguous rows are a view of, and where in it they begin; None for other arrays."""
    owner: object = rows
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or not hasattr(owner, "madvise") or not rows.size:
        return None
    whole = np.frombuffer(owner, np.uint8)
    if whole.flags.writeable or not rows.flags.c_contiguous:
        return None
    return owner, rows.ctypes.data - whole.ctypes.data
