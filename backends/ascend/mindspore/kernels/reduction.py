"""Reductions and orderings. MindSpore orders NaN anywhere, so that floats are ordered by integer keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops as msops

from xinheng.core import ops

from ..tensors import converted
from .movement import gather, piece
from .registry import MINDSPORE_KERNELS, calculated, double, is_float, narrow, wide


def _both(kind: Any) -> dict[bool, Any]:
    """A reduction that drops its axis, and one that keeps it."""
    return {keepdims: kind(keepdims) for keepdims in (False, True)}


_SUM, _MEAN, _MAX = map(_both, (msops.ReduceSum, msops.ReduceMean, msops.ReduceMax))
_DESCENDING: Any = msops.Sort(-1, True)
_LARGEST = 2**31 - 1
_LOW = 2**32 - 1


def _fold(op: Any, kernels: dict[bool, Callable[..., Any]]) -> None:
    def kernel(x: Any, *, axis: int, keepdims: bool = False) -> Any:
        if op is ops.sum and not x.shape[axis]:  # a sum of nothing would be left unwritten
            before, behind = x.shape[: axis % x.ndim], x.shape[axis % x.ndim + 1 :]
            return msops.zeros((*before, *((1,) if keepdims else ()), *behind), x.dtype)
        if x.dtype == ms.int64:  # added as float64, which holds sums of halves of the words
            high, low = msops.bitwise_right_shift(x, 32), msops.bitwise_and(x, _LOW)
            return msops.bitwise_left_shift(kernels[keepdims](high, axis), 32) + kernels[keepdims](low, axis)
        return narrow(kernels[keepdims](wide(x), axis), x)

    MINDSPORE_KERNELS.register(op, name=f"mindspore_{op.name}", when=calculated)(kernel)


_fold(ops.sum, _SUM)
_fold(ops.mean, _MEAN)


@MINDSPORE_KERNELS.register(ops.amax, name="mindspore_amax", when=calculated)
def amax(x: Any, *, axis: int, keepdims: bool = False) -> Any:
    largest = _MAX[keepdims](wide(x), axis)
    if is_float(x):
        holes = _SUM[keepdims](converted(msops.isnan(wide(x)), ms.int32), axis)
        largest = msops.select(msops.greater(holes, 0), largest * float("nan"), largest)
    return narrow(largest, x)


@MINDSPORE_KERNELS.register(ops.cumsum, name="mindspore_cumsum", when=calculated)
def cumsum(x: Any, *, axis: int) -> Any:
    return narrow(msops.cumsum(wide(x), axis), x) if x.size else x


def order_key(x: Any) -> Any:
    """Integers in the order of x: both zeros equal, NaN above infinity."""
    if not is_float(x):
        return x
    value = wide(x) + 0.0
    bits = value.view(ms.int32)
    key = msops.select(bits < 0, msops.bitwise_xor(bits, ms.Tensor(_LARGEST, ms.int32)), bits)
    return msops.select(msops.isnan(value), ms.Tensor(_LARGEST, ms.int32), key)


@MINDSPORE_KERNELS.register(ops.argmax, name="mindspore_argmax", when=calculated)
def argmax(x: Any, *, axis: int = -1) -> Any:
    axis %= x.ndim
    if not x.size:
        return ms.Tensor(np.zeros((*x.shape[:axis], *x.shape[axis + 1 :]), np.int32))
    return converted(msops.argmax(order_key(x), axis), ms.int32)


@MINDSPORE_KERNELS.register(ops.topk, name="mindspore_topk", when=calculated)
def topk(x: Any, *, k: int) -> Any:
    _, order = _DESCENDING(order_key(x))
    first = piece(order, -1, 0, k)
    return gather(x, first), first


def softmax_double(x: Any, axis: int = -1) -> Any:
    """softmax of a float64 tensor."""
    z = msops.exp(x - _MAX[True](x, axis))
    return z / _SUM[True](z, axis)


@MINDSPORE_KERNELS.register(ops.softmax, name="mindspore_softmax", when=calculated)
def softmax(x: Any, *, axis: int = -1) -> Any:
    return narrow(softmax_double(double(x), axis), x)
