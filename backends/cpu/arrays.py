"""Tensors of this device, which are numpy arrays in host memory, as the C side sees them: an address and strides."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""A tensor of any element type."""
LINE = 64
"""Bytes of a cache line."""

_BITS: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.int16)}


def bits_type(kind: np.dtype[Any]) -> np.dtype[Any]:
    """`kind`, or a type of numpy's own with as many bits if it is one of `ml_dtypes`: numpy does not describe all."""
    return kind if kind.isbuiltin == 1 else _BITS[kind.itemsize]


def address(x: Array) -> int:
    """Where the first element lies."""
    plain = x if x.dtype.isbuiltin == 1 else x.view(_BITS[x.itemsize])
    return plain.ctypes.data


def strides(x: Array) -> tuple[int, ...]:
    """Distances of neighbours along each axis, in values; of an axis of one element that in contiguous memory.

    Numpy tells any number for such an axis, depending on what the array is a view of.
    """
    size, inner, found = x.itemsize, 1, [0] * x.ndim
    for axis in reversed(range(x.ndim)):
        found[axis] = x.strides[axis] // size if x.shape[axis] > 1 else inner
        inner = found[axis] * max(x.shape[axis], 1)
    return tuple(found)


def stride(x: Array, axis: int) -> int:
    """One of `strides`."""
    return strides(x)[axis]


def contiguous(x: Array) -> Array:
    """`x` in memory without gaps, in the order of its axes; itself if it lies so already."""
    return x if x.flags.c_contiguous else x.copy()


def aligned(x: Array) -> Array:
    """A contiguous array on a cache line; itself if it lies there.

    Some libraries choose the order of a sum by where their operands lie.
    """
    if address(x) % LINE == 0:
        return x
    memory = np.empty(x.nbytes + LINE, np.uint8)
    start = -address(memory) % LINE
    made = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    made[...] = x
    return made
