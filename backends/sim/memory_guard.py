"""Guarded memory of a simulated device: what it makes lies between bands of a canary pattern, and starts as it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.hal import BAND, Region, RegionGuard, canary
from xinheng.core.ir.dtype import DType


class SimRegion(Region):
    """Memory of one tensor with a band on either side."""

    def __init__(self, shape: tuple[int, ...], kind: DType) -> None:
        self.what = f"{kind} {list(shape)}"
        pattern = np.frombuffer(canary(kind), np.uint8)
        size = kind.numpy.itemsize
        inside = int(np.prod(shape, dtype=int))
        self._bytes = np.tile(pattern, inside + 2 * BAND // size)
        self._clean = self._bytes[:BAND].tobytes()
        whole = self._bytes.view(kind.numpy)
        self.whole, self.offset = whole, BAND // size
        """All elements, those of the bands too, and where those of the tensor begin."""
        self.tensor: NDArray[Any] = whole[self.offset : self.offset + inside].reshape(shape)

    def intact(self) -> tuple[bool, bool]:
        return self._bytes[:BAND].tobytes() == self._clean, self._bytes[-BAND:].tobytes() == self._clean


class SimGuard(RegionGuard[SimRegion]):
    """Makes the regions of one device while it is entered."""

    def region(self, shape: tuple[int, ...], kind: DType) -> SimRegion:
        """New memory for a tensor."""
        return self.kept(SimRegion(shape, kind))
