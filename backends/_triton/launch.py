"""Starting kernels: every launch of this package goes through one function, so that it can be watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch

Watcher = Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None]
"""Takes a kernel, its grid, its arguments, and its constants with num_warps and num_stages."""

_WATCHERS: list[Watcher] = []


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int = 4, stages: int = 2, **constants: Any
) -> None:
    """Start a kernel on the current stream of the current device; nothing for an empty grid."""
    if 0 in grid:
        return
    # products and sums are not fused behind our back, so that they round the same way in every kernel
    how = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False, **constants}
    if _WATCHERS:
        _WATCHERS[-1](kernel, grid, arguments, how)
    else:
        place = next(x.device for x in arguments if isinstance(x, torch.Tensor))
        with current(place):
            kernel[grid](*arguments, **how)


def current(place: torch.device) -> AbstractContextManager[Any]:
    """Make a card the current one, of which Triton takes the stream; another one may have been opened since."""
    if place.type == "cpu":
        return np.errstate(all="ignore")  # the interpreter computes with numpy, which warns of what floats do
    made: AbstractContextManager[Any] = torch.get_device_module(place).device(place.index)
    return made


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Hand launches to `watcher` instead of the device, for instance to compile ahead of time what they would need."""
    _WATCHERS.append(watcher)
    try:
        yield
    finally:
        _WATCHERS.remove(watcher)


def power(size: int, least: int = 1, most: int | None = None) -> int:
    """The smallest power of two that is at least `size` and `least`, but no more than `most`."""
    found = max(least, 1 << max(0, size - 1).bit_length())
    return found if most is None else min(found, most)


def tiles(size: int, tile: int) -> int:
    """How many tiles cover a size."""
    return -(-size // tile)
