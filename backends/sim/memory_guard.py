"""Guarded memory of a simulated device: what it makes lies between bands of a canary pattern, and starts as it."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from xinheng.core.hal import BAND, MemoryGuard, canary
from xinheng.core.ir.dtype import DType

if TYPE_CHECKING:
    from .device import SimDevice


class Region:
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

    def violations(self) -> list[str]:
        """Which bands are not what they were."""
        bands = (("before", self._bytes[:BAND]), ("behind", self._bytes[-BAND:]))
        return [
            f"memory {side} a tensor {self.what} was written to"
            for side, band in bands
            if band.tobytes() != self._clean
        ]


class SimGuard(MemoryGuard):
    """Makes the regions of one device while it is entered."""

    def __init__(self, device: SimDevice) -> None:
        self._device = device
        self._regions: list[Region] = []

    def region(self, shape: tuple[int, ...], kind: DType) -> Region:
        """New memory for a tensor."""
        self._regions.append(Region(shape, kind))
        return self._regions[-1]

    def __enter__(self) -> Self:
        self._regions.clear()
        self._device.guard = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._device.guard = None

    def violations(self) -> list[str]:
        self._device.synchronize()
        return [told for region in self._regions for told in region.violations()]
