"""Elementwise kernels: arithmetic in float32, transcendental functions in float64, each result rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops as msops

from xinheng.core import ops
from xinheng.core.ir.dtype import DType, dtype, float32

from ..tensors import DTYPES, NAMES, converted, to_array, to_tensor
from .registry import MINDSPORE_KERNELS, calculated, double, held, is_float, movable, moved, narrow, wide


def _unary(op: Any, function: Callable[[Any], Any], prepared: Callable[[Any], Any]) -> None:
    def kernel(x: Any) -> Any:
        return narrow(function(prepared(x)), x)

    MINDSPORE_KERNELS.register(op, name=f"mindspore_{op.name}", when=calculated)(kernel)


def silu_double(x: Any) -> Any:
    """x sigmoid(x) of a float64 tensor."""
    return x * msops.sigmoid(x)


def gelu_double(x: Any, approximate: str) -> Any:
    """gelu of a float64 tensor."""
    if approximate == "tanh":
        return 0.5 * x * (1.0 + msops.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))
    return 0.5 * x * (1.0 + msops.erf(x * math.sqrt(0.5)))


def _absolute(x: Any) -> Any:
    return msops.abs(x)


for _op, _function in ((ops.neg, msops.neg), (ops.abs, _absolute), (ops.square, lambda x: x * x)):
    _unary(_op, _function, wide)
for _op, _function in (
    (ops.exp, msops.exp),
    (ops.log, msops.log),
    (ops.sin, msops.sin),
    (ops.cos, msops.cos),
    (ops.tanh, msops.tanh),
    (ops.erf, msops.erf),
    (ops.sigmoid, msops.sigmoid),
    (ops.sqrt, msops.sqrt),
    (ops.rsqrt, msops.rsqrt),
    (ops.silu, silu_double),
):
    _unary(_op, _function, double)


@MINDSPORE_KERNELS.register(ops.gelu, name="mindspore_gelu", when=calculated)
def gelu(x: Any, *, approximate: str = "none") -> Any:
    return narrow(gelu_double(double(x), approximate), x)


def _pair(a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands, of which one may be a Python number, as tensors of one dtype, 16-bit floats in float32."""
    if not isinstance(a, ms.Tensor):
        b = wide(b)
        return to_tensor(np.asarray(a), NAMES[b.dtype]), b
    if not isinstance(b, ms.Tensor):
        a = wide(a)
        return a, to_tensor(np.asarray(b), NAMES[a.dtype])
    return wide(a), wide(b)


def _binary(op: Any, function: Callable[[Any, Any], Any]) -> None:
    def kernel(a: Any, b: Any) -> Any:
        made = function(*_pair(a, b))
        return made if made.dtype == ms.bool_ else narrow(made, a if isinstance(a, ms.Tensor) else b)

    MINDSPORE_KERNELS.register(op, name=f"mindspore_{op.name}", when=calculated)(kernel)


def nan_kept(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """maximum or minimum with the NaN that MindSpore passes over: a sum is NaN where an operand is."""

    def kept(a: Any, b: Any) -> Any:
        total = a + b
        if not total.size:
            return total
        made = function(a, b)
        if not is_float(a):
            return made
        return msops.select(msops.logical_or(msops.isnan(a), msops.isnan(b)), total, made)

    return kept


def _divided(a: Any, b: Any) -> Any:
    """a / b; MindSpore makes an infinity of NaN / 0, and gives that of a / -0 the sign of a."""
    quotient = msops.select(msops.equal(b, 0), a * msops.reciprocal(b), msops.div(a, b))
    return msops.select(msops.isnan(a), a + b, quotient)


for _pairwise_op, _pairwise in (
    (ops.add, msops.add),
    (ops.sub, msops.sub),
    (ops.mul, msops.mul),
    (ops.div, _divided),
    (ops.maximum, nan_kept(msops.maximum)),
    (ops.minimum, nan_kept(msops.minimum)),
    (ops.eq, msops.equal),
    (ops.lt, msops.less),
    (ops.le, msops.less_equal),
    (ops.logical_and, msops.logical_and),
    (ops.logical_or, msops.logical_or),
):
    _binary(_pairwise_op, _pairwise)


def _whole(op: Any, function: Callable[[Any], Any]) -> None:
    """A function to whole numbers, which integers are already."""

    def kernel(x: Any) -> Any:
        return narrow(function(wide(x)), x) if is_float(x) else x

    MINDSPORE_KERNELS.register(op, name=f"mindspore_{op.name}", when=calculated)(kernel)


_whole(ops.floor, msops.floor)
_whole(ops.round, msops.round)  # a half goes to the even neighbour


@MINDSPORE_KERNELS.register(ops.clamp, name="mindspore_clamp", when=calculated)
def clamp(x: Any, *, low: float | None = None, high: float | None = None) -> Any:
    made = wide(x)
    for limit, choose in ((low, msops.maximum), (high, msops.minimum)):
        if limit is not None:
            made = nan_kept(choose)(*_pair(made, limit))
    return narrow(made, x)


@MINDSPORE_KERNELS.register(ops.logical_not, name="mindspore_logical_not")
def logical_not(x: Any) -> Any:
    return msops.logical_not(x)


@MINDSPORE_KERNELS.register(ops.where, name="mindspore_where", when=calculated)
def where(condition: Any, a: Any, b: Any) -> Any:
    kind = a.dtype if isinstance(a, ms.Tensor) else b.dtype
    a, b = (x if isinstance(x, ms.Tensor) else to_tensor(np.asarray(x), NAMES[kind]) for x in (a, b))
    return moved(msops.select(condition, movable(a), movable(b)), a)


@MINDSPORE_KERNELS.register(ops.cast, name="mindspore_cast", when=held)
def cast(x: Any, *, dtype: DType) -> Any:
    if dtype.is_float and dtype.bits < 32 and x.dtype in _BEYOND_FLOAT32:
        x = _rounded_to_odd(x)
    if dtype is not float32 and not dtype.is_float and is_float(x):
        x = wide(x)
    return converted(x, DTYPES[dtype])


_BEYOND_FLOAT32 = tuple(DTYPES[dtype(name)] for name in ("int64", "int32", "uint64", "uint32"))


def _rounded_to_odd(x: Any) -> Any:
    """Integers in float32, inexact values with an odd last bit: the next rounding then is as if it were the only one.

    MindSpore converts to 16-bit floats by way of float32. Boldo and Melquiond, "Emulation of FMA and correctly rounded
    sums: proved algorithms using rounding to odd", IEEE Transactions on Computers 57 (2008).
    """
    exact = converted(x, ms.float64)
    near = converted(exact, ms.float32)
    back = converted(near, ms.float64)
    bits = near.view(ms.int32)
    away = converted(msops.greater(msops.abs(back), msops.abs(exact)), ms.int32)
    inexact = converted(msops.not_equal(back, exact), ms.int32)
    odd: Any = msops.bitwise_or(bits - away, inexact)
    return odd.view(ms.float32)


@MINDSPORE_KERNELS.register(ops.reciprocal, name="mindspore_reciprocal", when=calculated)
def reciprocal(x: Any) -> Any:
    return narrow(_divided(*_pair(1.0, x)), x)


@MINDSPORE_KERNELS.register(ops.isfinite, name="mindspore_isfinite", when=calculated)
def isfinite(x: Any) -> Any:
    return msops.isfinite(wide(x))


@MINDSPORE_KERNELS.register(ops.pow, name="mindspore_pow", when=calculated)
def power(a: Any, b: Any) -> Any:
    # MindSpore's Pow has other results at infinities and wraps no integers; the host has those of IEEE 754
    kind = NAMES[(a if isinstance(a, ms.Tensor) else b).dtype]
    working = np.float64 if kind.is_float else kind.numpy
    x, y = ((to_array(v) if isinstance(v, ms.Tensor) else np.asarray(v)).astype(working) for v in (a, b))
    with np.errstate(all="ignore"):
        return to_tensor(np.asarray(np.power(x, y)), kind)


@MINDSPORE_KERNELS.register(ops.bitwise_and, name="mindspore_bitwise_and", when=calculated)
def bitwise_and(a: Any, b: Any) -> Any:
    return msops.bitwise_and(*_pair(a, b))


@MINDSPORE_KERNELS.register(ops.bitwise_shift, name="mindspore_bitwise_shift", when=calculated)
def bitwise_shift(x: Any, *, bits: int) -> Any:
    count = to_tensor(np.asarray(abs(bits)), NAMES[x.dtype])
    return msops.bitwise_left_shift(x, count) if bits >= 0 else msops.bitwise_right_shift(x, count)
