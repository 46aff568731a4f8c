"""The other ranks of a group, played by this one: what a collective computes is tested without another device.

That ranks in several processes reach each other at all is for the tests of a backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from xinheng.core.hal import Communicator, Device
from xinheng.core.ir.dtype import from_numpy
from xinheng.core.ops import among

from .bounds.bounded import Bounded


class Mirror(Communicator):
    """The end of rank 1, or of the only one: rank r holds what this one holds, rolled r - 1 places on its last axis."""

    def __init__(self, size: int, device: Device | None = None) -> None:
        super().__init__(min(1, size - 1), size)
        self._device = device

    def exchange(self, value: Any, what: str) -> list[Any]:
        return [value if rank == self.rank else self._moved(value, rank - self.rank) for rank in range(self.size)]

    def _moved(self, value: Any, places: int) -> Any:
        if isinstance(value, np.ndarray | Bounded):
            return np.roll(value, places, axis=-1)
        assert self._device is not None, "only references exchange arrays"
        moved = np.roll(self._device.download(value), places, axis=-1)
        return self._device.upload(np.ascontiguousarray(moved), from_numpy(moved.dtype))


def _ranks(attributes: Mapping[str, Any]) -> int:
    """How many ranks an op with these attributes has."""
    return int(attributes["size"]) if "group" in attributes else 1


@contextmanager
def mirrored(attributes: Mapping[str, Any]) -> Iterator[None]:
    """References inside this block meet the other ranks of the group that an op names."""
    size = _ranks(attributes)
    with among({attributes["group"]: Mirror(size)} if size > 1 else {}):
        yield


def connect(device: Device, attributes: Mapping[str, Any]) -> None:
    """Make the other ranks of the group that an op names known to a device."""
    size = _ranks(attributes)
    if size > 1:
        device.connect(attributes["group"], Mirror(size, device))
