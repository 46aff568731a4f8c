"""Guarded memory of programs: while somebody watches a device, results lie apart, with bands of a canary between them.

A program hands out memory by lifetime, so that what a kernel writes beside its result may be what another one needs
or nothing at all. Watched, no memory is used twice, and each result has bands that only a mistake changes.
"""

from __future__ import annotations

import torch

from xinheng.core.hal import BAND, Region, canary
from xinheng.core.ir.types import TensorType


class Room(Region):
    """The room of a result in the memory of a program [bytes]; it starts as the canary, as do the bands around it."""

    def __init__(self, memory: torch.Tensor, offset: int, size: int, type: TensorType) -> None:
        self.what = str(type)
        pattern = torch.frombuffer(bytearray(canary(type.dtype)), dtype=torch.uint8)
        self._clean = pattern.repeat(BAND // len(pattern))
        self._before, self._behind = memory[offset - BAND : offset], memory[offset + size : offset + size + BAND]
        for part in (self._before, self._behind):
            part.copy_(self._clean)
        inside = pattern.repeat(size // len(pattern))  # no element at all where a result is empty
        memory[offset : offset + len(inside)].copy_(inside)

    def intact(self) -> tuple[bool, bool]:
        return self._before.equal(self._clean), self._behind.equal(self._clean)
