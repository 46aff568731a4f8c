"""What an ONNX name stands for while a model is imported: a value of the graph, or an array known already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..ir.dim import Dim, Expr
from ..ir.dtype import DTYPES, DType, from_numpy
from ..ir.graph import Value

ELEMENT_TYPES: Mapping[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4_e2m1fn",
    24: "float8_e8m0fnu",
}
"""Our element types by number in ONNX's `TensorProto.DataType`; strings, complex and 2-bit types are absent."""

UNSUPPORTED_TYPES: Mapping[int, str] = {8: "string", 14: "complex64", 15: "complex128", 25: "uint2", 26: "int2"}


def element_type(number: int) -> DType:
    """The element type that ONNX gives a number; GraphError if there is none here."""
    if number in ELEMENT_TYPES:
        return DTYPES[ELEMENT_TYPES[number]]
    name = UNSUPPORTED_TYPES.get(number, f"number {number}")
    raise GraphError(
        f"tensors of element type {name} are not supported; supported: {', '.join(ELEMENT_TYPES.values())}"
    )


@dataclass(eq=False, slots=True)
class Item:
    """A tensor: its type, and a value of the graph, or its elements if they are known, or both.

    Known elements are an array of the numpy type of `dtype`, or an object array in which some are sizes of the graph.
    """

    dtype: DType
    shape: tuple[Dim, ...]
    value: Value | None = None
    known: NDArray[Any] | None = None
    name: str = ""
    views: dict[int, Value] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def symbolic(self) -> bool:
        """Whether some known element is a size that differs from run to run."""
        return self.known is not None and self.known.dtype == object

    @property
    def concrete(self) -> bool:
        """Whether all elements are numbers now."""
        return self.known is not None and self.known.dtype != object

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False, slots=True)
class Series:
    """An ONNX sequence, whose length is always known during an import."""

    items: tuple[Item, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Maybe:
    """An ONNX optional, of which it is always known during an import whether it holds something."""

    content: Item | Series | None


Thing = Item | Series | Maybe | None


def of_value(value: Value) -> Item:
    """The item of a value of a graph."""
    return Item(value.dtype, value.shape, value)


def of_array(array: NDArray[Any], dtype: DType | None = None, name: str = "") -> Item:
    """The item of an array; an object array holds sizes and needs a dtype."""
    array = np.asarray(array)
    if array.dtype == object:
        flat = [d if isinstance(d, Expr) else int(d) for d in array.reshape(-1)]
        assert dtype is not None
        if not any(isinstance(d, Expr) for d in flat):
            array = np.array(flat, dtype.numpy).reshape(array.shape)
    elif dtype is None:
        dtype = from_numpy(array.dtype)
    elif array.dtype != dtype.numpy:
        array = array.astype(dtype.numpy)
    return Item(dtype, tuple(array.shape), None, array, name)


def sizes(dims: Sequence[Dim], dtype: DType) -> Item:
    """A one-dimensional item of sizes."""
    array = np.empty(len(dims), object)
    array[:] = list(dims)
    return of_array(array, dtype)
