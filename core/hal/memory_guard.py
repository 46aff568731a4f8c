"""Watching the memory of a device while kernels run, so that what they read or write by mistake shows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import numpy as np

from ..ir.dtype import DType

BAND = 256
"""Bytes of a guard band; a multiple of what vector instructions want tensors to be aligned to."""


def canary(kind: DType) -> bytes:
    """One element of the canary pattern: a quiet NaN whose last byte is unusual, or bytes of 0xA5 where NaN is not."""
    if not kind.is_float:
        return b"\xa5" * kind.numpy.itemsize
    nan = np.array(np.nan, kind.numpy).tobytes()
    return nan if len(nan) == 1 else b"\xe5" + nan[1:]


class MemoryGuard(ABC):
    """While it is entered, new tensors of a device start as a canary pattern and lie between guard bands of it.

    The pattern is a NaN in float formats and an improbable number in others, so that a result that was never written
    shows as one; `violations` looks at the bands.
    """

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    def violations(self) -> list[str]:
        """A sentence per tensor whose surroundings were written to since it was made; waits for the device."""


class Region(ABC):
    """Memory of one tensor with a band on either side; `what` is its dtype and shape."""

    what: str

    @abstractmethod
    def intact(self) -> tuple[bool, bool]:
        """Whether the bands before and behind the tensor are as they were."""

    def violations(self) -> list[str]:
        """A sentence per band that was written to."""
        sides = zip(("before", "behind"), self.intact(), strict=True)
        return [f"memory {side} a tensor {self.what} was written to" for side, intact in sides if not intact]


R = TypeVar("R", bound=Region)


class RegionGuard(MemoryGuard, Generic[R]):
    """A guard that keeps the regions it hands out; while it is entered it is the `guard` of its device."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._regions: list[R] = []

    def kept(self, region: R) -> R:
        """A region, which `violations` will look at."""
        self._regions.append(region)
        return region

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
