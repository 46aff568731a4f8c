"""Guarded memory of the CPU: while somebody watches, arrays and results of programs lie between bands of a canary.

A program hands out memory by lifetime, so that what a kernel writes beside its result may be what another one needs
or nothing at all. Watched, no memory is used twice, and each result has bands that only a mistake changes.
"""

from __future__ import annotations

from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from xinheng.core.hal import BAND, MemoryGuard, Region, RegionGuard, canary
from xinheng.core.ir.dtype import from_numpy
from xinheng.core.ir.types import TensorType

from .arrays import Array, aligned, bits_type, strides


class HostRegion(Region):
    """An array in the middle of a larger one; strides are kept."""

    def __init__(self, like: Array, filled: bool) -> None:
        kind = from_numpy(like.dtype)
        self.what = f"{kind} {list(like.shape)}"
        steps, size = strides(like), like.itemsize
        inside = 1 + sum((n - 1) * step for n, step in zip(like.shape, steps, strict=True)) if like.size else 0
        pattern = np.frombuffer(canary(kind), np.uint8)
        self._bytes = aligned(np.tile(pattern, inside + 2 * BAND // size))
        self._clean = np.tile(pattern, BAND // size)
        values = self._bytes[BAND:].view(bits_type(like.dtype))
        self.array = as_strided(values, like.shape, [step * size for step in steps]).view(like.dtype)
        if filled:
            self.array[...] = like

    def intact(self) -> tuple[bool, bool]:
        return bool((self._bytes[:BAND] == self._clean).all()), bool((self._bytes[-BAND:] == self._clean).all())


class Room(Region):
    """The room of a result in the memory of a program [bytes]; it starts as the canary, as do the bands around it."""

    def __init__(self, memory: Array, offset: int, size: int, type: TensorType) -> None:
        self.what = str(type)
        pattern = np.frombuffer(canary(type.dtype), np.uint8)
        self._clean = np.tile(pattern, BAND // len(pattern))
        self._before, self._behind = memory[offset - BAND : offset], memory[offset + size : offset + size + BAND]
        for part in (self._before, self._behind):
            part[...] = self._clean
        inside = np.tile(pattern, size // len(pattern))  # no element at all where a result is empty
        memory[offset : offset + len(inside)] = inside

    def intact(self) -> tuple[bool, bool]:
        return bool((self._before == self._clean).all()), bool((self._behind == self._clean).all())


class HostGuard(RegionGuard[Region]):
    """Moves new arrays of a device into regions while it is entered, and tensors once torch kernels run."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self._torch: MemoryGuard | None = None

    def moved(self, array: Array, filled: bool = True) -> Array:
        """An array in guarded memory: with the numbers of the given one, or with the canary."""
        region = HostRegion(array, filled)
        self.kept(region)
        return region.array

    def watch_torch(self) -> None:
        """Watch what torch kernels make from now on."""
        if self._torch is None:
            import torch

            from .._torch.memory_guard import TorchGuard

            here: Any = SimpleNamespace(device=torch.device("cpu"), guard=None, synchronize=lambda: None)
            self._torch = TorchGuard(here)
            self._torch.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._torch is not None:
            self._torch.__exit__(kind, error, trace)
        super().__exit__(kind, error, trace)

    def violations(self) -> list[str]:
        seen = [] if self._torch is None else self._torch.violations()
        return [*super().violations(), *seen]
