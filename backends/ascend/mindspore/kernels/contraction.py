"""Matrix products and the readers of weights, accumulated in float32."""

from __future__ import annotations

import math
from typing import Any

from mindspore import ops as msops

from xinheng.core import ops
from xinheng.core.ir.dtype import DType

from ..handles import DTYPES, MindSporeWeight
from .movement import zeros
from .registry import FLOATS, MINDSPORE_KERNELS, calculated, converted, indexing, narrow, wide

_BY_ROWS: Any = msops.MatMul(transpose_b=True)


@MINDSPORE_KERNELS.register(ops.matmul, name="mindspore_matmul", when=calculated)
def matmul(a: Any, b: Any) -> Any:
    if not a.shape[-1]:  # MindSpore leaves the memory of an empty sum as it was
        a, b = zeros((*a.shape[:-1], 1), a), zeros((*b.shape[:-2], 1, b.shape[-1]), b)
    return narrow(msops.matmul(wide(a), wide(b)), a)


@MINDSPORE_KERNELS.register(ops.linear, name="mindspore_linear", dtypes=FLOATS)
def linear(x: Any, weight: MindSporeWeight, bias: Any = None) -> Any:
    rows, columns = weight.values.shape
    flat = wide(x).reshape((math.prod(x.shape[:-1]), columns))
    y = _BY_ROWS(flat, weight.values)
    if bias is not None:
        y = y + wide(bias)
    return narrow(y.reshape((*x.shape[:-1], rows)), x)


@MINDSPORE_KERNELS.register(ops.embedding, name="mindspore_embedding", dtypes=FLOATS)
def embedding(indices: Any, weight: MindSporeWeight, *, dtype: DType) -> Any:
    return converted(msops.gather(weight.values, indexing(indices), 0), DTYPES[dtype])


@MINDSPORE_KERNELS.register(ops.dequantize, name="mindspore_dequantize", dtypes=FLOATS)
def dequantize(weight: MindSporeWeight, *, dtype: DType) -> Any:
    return converted(weight.values, DTYPES[dtype])
