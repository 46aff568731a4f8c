"""What a device gives at most, as it measured itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The rates that no kernel can exceed.

    Args:
        bandwidth: bytes per second when memory of `working_set` bytes is read over and over.
        working_set: bytes.
        rates: operations per second by the name of the element type that is multiplied; a multiplication and an
            addition count as two.
    """

    bandwidth: float
    working_set: int
    rates: Mapping[str, float]
