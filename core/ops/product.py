"""Products along an axis."""

from __future__ import annotations

import numpy as np

from ..ir.dim import Dim
from ..ir.op import Tensor, Tolerance, op
from ..ir.types import TensorType
from .elementwise import number
from .movement import axis_of


@op(tolerance=Tolerance.REDUCTION)
def prod(x: Tensor, *, axis: int, keepdims: bool = False) -> Tensor:
    """The product along an axis, in at least float32, rounded once; 1 over an empty axis."""
    rows = np.moveaxis(x, axis, 0)
    total = rows[0] if x.shape[axis] else np.ones(rows.shape[1:], x.dtype)
    for i in range(1, x.shape[axis]):
        total = total * rows[i]
    return np.expand_dims(total, axis) if keepdims else total


@prod.infer
def _(x: TensorType, *, axis: int, keepdims: bool) -> TensorType:
    axis = axis_of(number(x), axis)
    middle: tuple[Dim, ...] = (1,) if keepdims else ()
    return TensorType(x.dtype, (*x.shape[:axis], *middle, *x.shape[axis + 1 :]))


@op(tolerance=Tolerance.REDUCTION)
def cumprod(x: Tensor, *, axis: int) -> Tensor:
    """Running products along an axis, each including its own element."""
    rows = np.moveaxis(x, axis, 0)
    made: list[Tensor] = []
    for i in range(x.shape[axis]):
        made.append(made[-1] * rows[i] if made else rows[i])
    return np.moveaxis(np.stack(made, axis=0), 0, axis) if made else x


@cumprod.infer
def _(x: TensorType, *, axis: int) -> TensorType:
    axis_of(x, axis)
    return number(x)
