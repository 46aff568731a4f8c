"""A weight scheme says how the values of a parameter are coded in bytes, and how to read them back exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError, nearest
from ..ir.dtype import DType


class Unpack(Protocol):
    """Decode uint8 [..., n * block_bytes] to `dtype` [..., n * block]."""

    def __call__(self, data: NDArray[np.uint8], dtype: Any = np.float32) -> NDArray[Any]: ...


Pack = Callable[[NDArray[Any]], NDArray[np.uint8]]


@dataclass(frozen=True)
class Scheme:
    """How values along the last axis become bytes: `block` neighbouring values are coded in `block_bytes` bytes.

    `unpack(data, dtype)` decodes uint8 [..., n * block_bytes] to [..., n * block]. The values are exact in float64; in
    float32 they are the float64 values rounded once. `pack(values)` is the inverse with the rounding of the format's
    reference encoder, or None where this project only reads the format. `dense` is the element type of a scheme that
    stores one plain number per value, None for block formats. `header` bytes stand in front of the blocks of each row,
    for what all of them share.
    """

    name: str
    block: int
    block_bytes: int
    unpack: Unpack = field(repr=False, compare=False)
    pack: Pack | None = field(default=None, repr=False, compare=False)
    dense: DType | None = None
    header: int = 0

    @property
    def bits(self) -> float:
        """Bits per value, scales included."""
        return 8 * self.block_bytes / self.block

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` values.

        Raises:
            ValueError: `columns` is not a multiple of the block.
        """
        if columns % self.block:
            raise ValueError(f"scheme {self.name!r} codes blocks of {self.block} values; {columns} columns do not fit")
        return self.header + columns // self.block * self.block_bytes


_SCHEMES: dict[str, Scheme] = {}
SCHEMES: Mapping[str, Scheme] = MappingProxyType(_SCHEMES)


def register(scheme: Scheme) -> Scheme:
    """Make `scheme` known by its name and return it.

    Raises:
        GraphError: another scheme has that name, or the sizes are not positive.
    """
    if scheme.block < 1 or scheme.block_bytes < 1:
        raise GraphError(f"scheme {scheme.name!r} needs a positive block and block_bytes")
    if scheme.name in _SCHEMES:
        raise GraphError(f"scheme {scheme.name!r} is registered already; give the new one another name")
    _SCHEMES[scheme.name] = scheme
    return scheme


def scheme(name: str) -> Scheme:
    """The scheme called `name`.

    Raises:
        GraphError: there is no such scheme; the message names the nearest one.
    """
    if name not in _SCHEMES:
        raise GraphError(f"unknown weight scheme {name!r}{nearest(name, list(_SCHEMES))}; known: {', '.join(_SCHEMES)}")
    return _SCHEMES[name]
