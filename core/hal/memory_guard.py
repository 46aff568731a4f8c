"""Watching the memory of a device while kernels run, so that what they read or write by mistake shows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

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
