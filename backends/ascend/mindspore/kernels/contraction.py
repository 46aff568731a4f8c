"""Matrix products and the readers of weights, accumulated in float32."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
from mindspore import ops as msops

from xinheng.core import ops
from xinheng.core.ir.dtype import DType

from ..handles import MindSporePart, MindSporeWeight
from ..tensors import DTYPES, blank, converted
from .movement import zeros
from .registry import FLOATS, MINDSPORE_KERNELS, calculated, indexing, movable, moved, narrow, wide
from .rows import by_tiles, joined, tiles

_BY_ROWS: Any = msops.MatMul(transpose_b=True)
_PER_HEAD: Any = msops.BatchMatMul()
_CHUNK_VALUES = 1 << 22
"""How many values of a packed weight are decoded at once."""


@MINDSPORE_KERNELS.register(ops.matmul, name="mindspore_matmul", when=calculated)
def matmul(a: Any, b: Any) -> Any:
    if not a.shape[-1]:  # MindSpore leaves the memory of an empty sum as it was
        a, b = zeros((*a.shape[:-1], 1), a), zeros((*b.shape[:-2], 1, b.shape[-1]), b)
    if a.ndim < 2 or not a.shape[-2] or not b.size:
        return narrow(msops.matmul(wide(a), wide(b)), a)
    return narrow(by_tiles(msops.matmul, wide(a), wide(b)), a)


@MINDSPORE_KERNELS.register(ops.linear, name="mindspore_linear", dtypes=FLOATS)
def linear(x: Any, weight: MindSporeWeight, bias: Any = None) -> Any:
    rows, columns = weight.shape
    flat = wide(x).reshape((math.prod(x.shape[:-1]), columns))
    if not flat.shape[0]:
        return zeros((*x.shape[:-1], rows), x)
    parts = tiles(flat)
    # each piece of the weight is decoded once, for all rows
    pieces = weight.pieces(max(1, _CHUNK_VALUES // columns))
    made = tuple(joined([_BY_ROWS(tile, values) for tile in parts], flat.shape[0]) for values in pieces)
    y = made[0] if len(made) == 1 else msops.cat(made, -1)
    if bias is not None:
        y = y + wide(bias)
    return narrow(y.reshape((*x.shape[:-1], rows)), x)


@MINDSPORE_KERNELS.register(ops.batched_linear, name="mindspore_batched_linear", dtypes=FLOATS)
def batched_linear(x: Any, weight: MindSporeWeight, *, transposed: bool = False) -> Any:
    values = weight.values()
    if not transposed:
        values = msops.transpose(values, (0, 2, 1))
    if not x.size or not values.size:
        return zeros((*x.shape[:2], values.shape[2]), x)
    per_head = msops.transpose(wide(x), (1, 0, 2))
    return narrow(msops.transpose(by_tiles(_PER_HEAD, per_head, values), (1, 0, 2)), x)


@MINDSPORE_KERNELS.register(ops.embedding, name="mindspore_embedding", dtypes=FLOATS)
def embedding(indices: Any, weight: MindSporeWeight, *, dtype: DType) -> Any:
    whole = weight.dense
    at = indexing(indices)
    if whole is not None and whole.dtype != ms.bfloat16:
        return converted(msops.gather(whole, at, 0), DTYPES[dtype])
    flat, (_, columns) = at.reshape((-1,)), weight.shape
    if not flat.shape[0]:
        return blank((*indices.shape, columns), DTYPES[dtype])
    made: Any = None
    first = 0
    for part in weight.parts:
        inside = msops.logical_and(flat >= first, flat < first + part.rows)
        here = msops.select(inside, flat - first, msops.zeros_like(flat))
        planes = tuple(moved(msops.gather(movable(plane), here, 0), plane) for plane in part.planes)
        values = MindSporePart(part.scheme, flat.shape[0], planes).values()
        made = values if made is None else msops.select(inside.expand_dims(-1), values, made)
        first += part.rows
    return converted(made.reshape((*indices.shape, columns)), DTYPES[dtype])


@MINDSPORE_KERNELS.register(ops.dequantize, name="mindspore_dequantize", dtypes=FLOATS)
def dequantize(weight: MindSporeWeight, *, dtype: DType) -> Any:
    return converted(weight.values(), DTYPES[dtype])
