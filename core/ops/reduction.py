"""Ops that fold an axis, and those that order it."""

from __future__ import annotations

import numpy as np

from ..ir import numeric
from ..ir.dim import Dim
from ..ir.dtype import int32
from ..ir.op import Tensor, Tolerance, op, require
from ..ir.types import TensorType
from .elementwise import div, exp, floating, narrowed, number, sub, widened
from .movement import axis_of


def _folded(x: TensorType, *, axis: int, keepdims: bool) -> TensorType:
    number(x)
    axis = axis_of(x, axis)
    middle: tuple[Dim, ...] = (1,) if keepdims else ()
    return TensorType(x.dtype, (*x.shape[:axis], *middle, *x.shape[axis + 1 :]))


def _wrapped(y: Tensor, x: Tensor) -> Tensor:
    """Sums of integers in the dtype of their terms."""
    return y.astype(x.dtype) if isinstance(x, np.ndarray) and x.dtype.kind in "iu" else y


@op(tolerance=Tolerance.REDUCTION)
def sum(x: Tensor, *, axis: int, keepdims: bool = False) -> Tensor:
    """The sum along an axis, accumulated in at least float32, integers wrapping; 0 over an empty axis."""
    return _wrapped(np.sum(x, axis=axis, keepdims=keepdims), x)


@op(tolerance=Tolerance.REDUCTION)
def mean(x: Tensor, *, axis: int, keepdims: bool = False) -> Tensor:
    """The arithmetic mean of floats along an axis, accumulated in at least float32; NaN over an empty axis."""
    return np.mean(x, axis=axis, keepdims=keepdims)


@op(tolerance=Tolerance.EXACT)
def amax(x: Tensor, *, axis: int, keepdims: bool = False) -> Tensor:
    """The largest element along an axis, which must not be empty; NaN if there is one."""
    return np.max(x, axis=axis, keepdims=keepdims)


for _op in (sum, amax):
    _op.infer(_folded)


@mean.infer
def _(x: TensorType, *, axis: int, keepdims: bool) -> TensorType:
    return _folded(floating(x), axis=axis, keepdims=keepdims)


@op(tolerance=Tolerance.REDUCTION)
def cumsum(x: Tensor, *, axis: int) -> Tensor:
    """Running sums along an axis, each including its own element; accumulated as in sum."""
    return _wrapped(np.cumsum(x, axis=axis), x)


@cumsum.infer
def _(x: TensorType, *, axis: int) -> TensorType:
    axis_of(x, axis)
    return number(x)


@op(tolerance=Tolerance.SELECTION)
def argmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """The index (int32) of the largest element along an axis, which must not be empty; the lowest one on ties.

    A NaN is larger than any number.
    """
    return np.argmax(x, axis=axis).astype(np.int32)


@argmax.infer
def _(x: TensorType, *, axis: int) -> TensorType:
    return TensorType(int32, _folded(x, axis=axis, keepdims=False).shape)


@op(tolerance=Tolerance.SELECTION)
def topk(x: Tensor, *, k: Dim) -> Tensor:
    """The k largest elements along the last axis, in descending order, and their indices (int32).

    Equal elements keep the order of their indices, so that k = length is a stable sort. A NaN is larger than any
    number.
    """
    # an ascending order of the reversed axis, reversed: negating would wrap unsigned integers and put NaN last
    backwards = np.argsort(np.flip(x, axis=-1), axis=-1, kind="stable")
    order = (x.shape[-1] - 1 - np.flip(backwards, axis=-1))[..., :k]
    return np.take_along_axis(x, order, axis=-1), order.astype(np.int32)


@topk.infer
def _(x: TensorType, *, k: Dim) -> tuple[TensorType, TensorType]:
    require(x.rank > 0, "needs at least one axis")
    number(x)
    if isinstance(k, int) and isinstance(x.shape[-1], int):
        require(0 <= k <= x.shape[-1], f"k is {k}, the axis has {x.shape[-1]} elements")
    shape = (*x.shape[:-1], k)
    return TensorType(x.dtype, shape), TensorType(int32, shape)


@op(tolerance=Tolerance.REDUCTION)
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """exp(x - max) / sum(exp(x - max)) along an axis, which must not be empty; in at least float32, rounded once."""
    z = np.exp(x - numeric.shift(np.max(x, axis=axis, keepdims=True)))
    return z / np.sum(z, axis=axis, keepdims=True)


@softmax.infer
def _(x: TensorType, *, axis: int) -> TensorType:
    axis_of(x, axis)
    return floating(x)


@softmax.decompose
def _(x: Tensor, *, axis: int) -> Tensor:
    wide = widened(x)
    z = exp(sub(wide, amax(wide, axis=axis, keepdims=True)))
    return narrowed(div(z, sum(z, axis=axis, keepdims=True)), x)
