"""What a card gives at most: memory read over and over, and large products by the vendor's own library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xinheng.core.hal import Limits, MemoryStats

PRODUCT = 4096
"""Rows, columns and terms of the products that are timed."""
SECONDS = 0.2
"""How long each rate is measured at least."""
KINDS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def measured_limits(
    runtime: Any, device: torch.device, memory: MemoryStats, working_set: int, product: int = PRODUCT
) -> Limits | None:
    """The rates of a card, through the module of torch that drives it; None if it has no room for the working set.

    Reading is timed by the largest element of the working set, of which the library reads each byte once.
    """
    if working_set > memory.available:
        return None
    words = torch.zeros(max(working_set // 4, 1), dtype=torch.int32, device=device)
    seconds = _seconds(runtime, lambda: words.amax())
    rates = {}
    for name, kind in KINDS.items():
        factor = torch.ones((product, product), dtype=kind, device=device)
        rates[name] = 2.0 * product**3 / _seconds(runtime, lambda factor=factor: factor @ factor)  # type: ignore[misc]
    return Limits(words.nbytes / seconds, words.nbytes, rates)


def _seconds(runtime: Any, work: Callable[[], Any]) -> float:
    """How long some work takes, the best of some runs that fill `SECONDS`; the first ones load its kernels."""
    best, spent, count = float("inf"), 0.0, 0
    while spent < SECONDS or count < 5:
        start, end = (runtime.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        passed = start.elapsed_time(end) / 1e3
        spent, count = spent + passed, count + 1
        best = min(best, passed)
    return best
