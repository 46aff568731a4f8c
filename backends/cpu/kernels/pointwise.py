"""Native elementwise functions with broadcasting of rows, columns and scalars, and rows gathered by index."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from xinheng.core.errors import DeviceError
from xinheng.core.ir.dim import Dim
from xinheng.core.ir.dtype import bfloat16, float16, float32, int32
from xinheng.core.ir.graph import Node, Value
from xinheng.core.ir.types import TensorType

from ..arrays import Array, address, contiguous
from .library import TYPES, Library, check

FUNCTIONS = {
    name: code
    for code, name in enumerate(("cast", "neg", "cos", "sin", "tanh", "sigmoid", "exp", "add", "sub", "mul", "div"))
}
"""Ops by the code of their function; `Pointwise` in csrc/pointwise.h."""

FLOATS = (float32, bfloat16, float16)
_INTEGER = 8  # `INTEGER32` in csrc/pointwise.h
_CODES = {**TYPES, int32.numpy: _INTEGER}


def strides_of(given: tuple[Dim, ...], shape: tuple[Dim, ...]) -> tuple[Dim, Dim] | None:
    """Distances of rows and columns of a contiguous operand that is broadcast to `shape`, as rows of its last axis.

    None where it is broadcast in another way than as a whole, along all rows, or along the columns.
    """
    trimmed = given
    while trimmed and trimmed[0] == 1:
        trimmed = trimmed[1:]
    if not trimmed:
        return 0, 0
    if given == shape:
        return shape[-1], 1
    if trimmed == shape[-1:]:
        return 0, 1
    if len(given) == len(shape) and given[-1] == 1 and given[:-1] == shape[:-1]:
        return 1, 0
    return None


def pointwise_condition(node: Node) -> bool | str:
    """Whether the native function covers the dtypes and the broadcasting of a node, or why not."""
    result = node.results[0].type
    assert isinstance(result, TensorType)
    if result.dtype not in FLOATS:
        return f"writes float32, bfloat16 and float16, not {result.dtype}"
    for value in _values(node):
        if value.dtype not in FLOATS and not (node.op.name == "cast" and value.dtype is int32):
            return f"reads no {value.dtype}"
        if value.dtype is int32 and result.dtype is not float32:
            return f"rounds int32 to float32 before it would round to {result.dtype}"
        if strides_of(value.shape, result.shape) is None:
            return f"does not broadcast {value.type} to {result}"
    return True


def _values(node: Node) -> list[Value]:
    return [value for value in node.operands if value is not None]


def rows_condition(node: Node) -> bool | str:
    """Whether index_select gathers rows of a matrix by int32 indices."""
    x, indices = node.operands[:2]
    assert x is not None and indices is not None
    if node.attributes["axis"] != 0 or len(x.shape) != 2 or len(indices.shape) != 1 or indices.dtype is not int32:
        return "gathers rows of a matrix by a vector of int32"
    return True if x.dtype in FLOATS else f"reads no {x.dtype}"


def pointwise_kernel(library: Library, name: str) -> Callable[..., Array]:
    """The kernel of an elementwise op."""
    function, run = FUNCTIONS[name], library.pointwise

    def apply(operands: list[Any], kind: np.dtype[Any]) -> Array:
        shape = np.broadcast_shapes(*(x.shape for x in operands if isinstance(x, np.ndarray)))
        out = library.empty(shape, kind)
        columns = shape[-1] if shape else 1
        given: list[Any] = []
        held = []
        for x in [*operands, operands[0]][:2]:
            if isinstance(x, np.ndarray):
                x = contiguous(x)
                strides = strides_of(tuple(x.shape), tuple(shape))
                if strides is None:
                    raise DeviceError(f"{name}: {list(x.shape)} is not broadcast to {list(shape)} by a native kernel")
                given += [address(x), *strides, _CODES[x.dtype]]
            else:
                number = ctypes.c_float(float(x))
                given += [ctypes.addressof(number), 0, 0, 0]
                x = number
            held.append(x)
        rows = math.prod(shape[:-1])
        check(run(function, rows, columns, *given, TYPES[kind], address(out)), name)
        return out

    def unary(x: Array) -> Array:
        return apply([x], x.dtype)

    def binary(a: Any, b: Any) -> Array:
        return apply([a, b], a.dtype if isinstance(a, np.ndarray) else b.dtype)

    def cast(x: Array, *, dtype: Any) -> Array:
        return apply([x], dtype.numpy)

    return cast if name == "cast" else binary if function >= FUNCTIONS["add"] else unary


def rows_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `index_select` for rows."""

    def index_select(x: Array, indices: Array, *, axis: int = 0) -> Array:
        if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= x.shape[0]):
            raise DeviceError(f"index_select: an index is outside the {x.shape[0]} rows")
        return np.take(x, indices, axis=0, out=library.empty((len(indices), *x.shape[1:]), x.dtype), mode="clip")

    return index_select
