"""Matrix products, and the readers of weights."""

from __future__ import annotations

import numpy as np

from ..errors import GraphError
from ..ir.dim import broadcast, require_equal
from ..ir.dtype import DType
from ..ir.op import Tensor, Tolerance, Weight, op, require
from ..ir.types import TensorType, WeightType
from ..schemes import scheme
from .elementwise import add, narrowed, number, widened
from .movement import index_select, integer, permute, reshape


@op(tolerance=Tolerance.CONTRACTION)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product over the last two axes, leading axes broadcast; accumulated in at least float32."""
    return np.matmul(a, b)


@matmul.infer
def _(a: TensorType, b: TensorType) -> TensorType:
    require(a.rank >= 2 and b.rank >= 2, f"needs matrices, got {a} and {b}")
    require(number(a).dtype == b.dtype, f"operands differ in dtype: {a.dtype} and {b.dtype}")
    require_equal(a.shape[-1], b.shape[-2], f"inner sizes of {a} and {b} differ")
    return TensorType(a.dtype, (*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))


def weight_matrix(weight: WeightType) -> tuple[int, int]:
    """(rows, columns) of a weight whose rows its schemes can hold."""
    require(len(weight.shape) == 2, f"needs a weight of two axes, not {weight}")
    for name, _ in weight.parts:
        try:
            scheme(name).row_bytes(weight.shape[1])
        except ValueError as error:
            raise GraphError(f"{weight}: {error}") from None
    return weight.shape[0], weight.shape[1]


def weight_stack(weight: WeightType) -> tuple[int, int, int]:
    """(groups, rows, columns) of a stack of weights whose rows its schemes can hold."""
    require(len(weight.shape) == 3, f"needs a weight of three axes, not {weight}")
    groups, rows, columns = weight.shape
    weight_matrix(WeightType((groups * rows, columns), weight.scheme))
    return groups, rows, columns


@op(tolerance=Tolerance.EXACT)
def dequantize(weight: Weight, *, dtype: DType) -> Tensor:
    """The values [rows, columns] of a weight, each rounded once to `dtype`."""
    return weight


@dequantize.infer
def _(weight: WeightType, *, dtype: DType) -> TensorType:
    require(dtype.is_float, f"weights are read as floats, not {dtype}")
    return TensorType(dtype, weight_matrix(weight))


@op(tolerance=Tolerance.CONTRACTION)
def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x times the transposed weight, plus bias: [..., columns] to [..., rows]; accumulated in at least float32."""
    y = np.matmul(x, np.swapaxes(weight, -1, -2))
    return y if bias is None else y + bias


@linear.infer
def _(x: TensorType, weight: WeightType, bias: TensorType | None) -> TensorType:
    rows, columns = weight_matrix(weight)
    require(x.rank >= 1 and x.dtype.is_float, f"needs a float tensor of at least one axis, not {x}")
    require_equal(x.shape[-1], columns, f"{x} does not fit {weight}")
    require(bias is None or bias == TensorType(x.dtype, (rows,)), f"bias must be {x.dtype}[{rows}], not {bias}")
    return TensorType(x.dtype, (*x.shape[:-1], rows))


@linear.decompose
def _(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    wide = widened(x)
    rows = reshape(wide, shape=(1, *x.shape)) if x.tensor.rank == 1 else wide
    y = matmul(rows, permute(dequantize(weight, dtype=wide.dtype), axes=(1, 0)))
    y = reshape(y, shape=(weight.type.shape[0],)) if x.tensor.rank == 1 else y
    return narrowed(y if bias is None else add(y, widened(bias)), x)


@op(tolerance=Tolerance.EXACT)
def embedding(indices: Tensor, weight: Weight, *, dtype: DType) -> Tensor:
    """Rows of a weight, each value rounded once to `dtype`: indices [...] to [..., columns]."""
    return np.take(weight, np.asarray(indices, np.int64), axis=0)


@embedding.infer
def _(indices: TensorType, weight: WeightType, *, dtype: DType) -> TensorType:
    integer(indices, "indices")
    require(dtype.is_float, f"weights are read as floats, not {dtype}")
    return TensorType(dtype, (*indices.shape, weight_matrix(weight)[1]))


@embedding.decompose
def _(indices: Tensor, weight: Weight, *, dtype: DType) -> Tensor:
    return index_select(dequantize(weight, dtype=dtype), indices, axis=0)


@op(tolerance=Tolerance.CONTRACTION)
def batched_linear(x: Tensor, weight: Weight, *, transposed: bool = False) -> Tensor:
    """Each head times the transposed weight of its own: x [tokens, heads, columns] to [tokens, heads, rows].

    The weight is [heads, rows, columns], or [heads, columns, rows] and not transposed here if `transposed`. Accumulated
    in at least float32, rounded once.
    """
    per_head = np.transpose(x, (1, 0, 2))
    y = np.matmul(per_head, weight if transposed else np.swapaxes(weight, -1, -2))
    return np.transpose(y, (1, 0, 2))


@batched_linear.infer
def _(x: TensorType, weight: WeightType, *, transposed: bool) -> TensorType:
    heads, rows, columns = weight_stack(weight)
    if transposed:
        rows, columns = columns, rows
    require(x.rank == 3 and x.dtype.is_float, f"x must be float [tokens, heads, columns], not {x}")
    require_equal(x.shape[1], heads, f"{x} has not one head per weight of {weight}")
    require_equal(x.shape[2], columns, f"{x} does not fit {weight}")
    return TensorType(x.dtype, (x.shape[0], heads, rows))
