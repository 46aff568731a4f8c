"""Native readers of weights: rows gathered by index, and all rows as plain numbers, each value rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xinheng.core.errors import DeviceError
from xinheng.core.ir.dtype import DType

from ..arrays import Array, address
from .library import TYPES, Library, check, integers_of


def _output_type(dtype: DType) -> np.dtype[Any]:
    kind = dtype.numpy
    if kind not in TYPES:
        raise DeviceError(f"native kernels write float32, bfloat16 and float16, not {dtype}; use the torch kernel")
    return kind


def embedding_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `embedding`."""

    def embedding(indices: Array, weight: Any, *, dtype: DType) -> Array:
        kind = _output_type(dtype)
        rows, columns = weight.shape
        flat = integers_of(indices)
        out = library.empty((*indices.shape, columns), kind)
        wide, count = int(flat.dtype == np.int64), flat.size
        parts = library.pack(weight)
        bad = library.embedding(
            address(flat), wide, count, parts, len(weight.parts), columns, TYPES[kind], address(out)
        )
        if bad >= 0:
            raise DeviceError(f"embedding: index {int(flat.reshape(-1)[bad])} is outside the {rows} rows of the weight")
        check(bad + 1, "embedding")
        return out

    return embedding


def dequantize_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `dequantize`."""

    def dequantize(weight: Any, *, dtype: DType) -> Array:
        kind = _output_type(dtype)
        rows, columns = weight.shape
        out = library.empty((rows, columns), kind)
        parts = library.pack(weight)
        check(library.dequantize(parts, len(weight.parts), columns, TYPES[kind], address(out)), "dequantize")
        return out

    return dequantize
