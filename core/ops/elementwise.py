"""Ops that treat every element alone; operands broadcast by numpy's rule and share one dtype."""

from __future__ import annotations

import math

import numpy as np

from ..ir import numeric
from ..ir.dim import broadcast
from ..ir.dtype import DType, bool_, float32
from ..ir.op import Tensor, Tolerance, op, require
from ..ir.types import TensorType


def number(x: TensorType, **_: object) -> TensorType:
    """The result has the type of the only operand, which may be anything but bool."""
    require(x.dtype is not bool_, "needs numbers, not bool")
    return x


def joined(a: TensorType, b: TensorType) -> TensorType:
    """Two operands of one dtype broadcast against each other."""
    require(a.dtype == b.dtype, f"operands differ in dtype: {a.dtype} and {b.dtype}; cast one of them")
    return TensorType(a.dtype, broadcast(a.shape, b.shape))


def calculated(a: TensorType, b: TensorType) -> TensorType:
    """As `joined`, for anything but bool."""
    return joined(number(a), b)


def compared(a: TensorType, b: TensorType) -> TensorType:
    """As `joined`, but the result is bool."""
    return TensorType(bool_, joined(a, b).shape)


def floating(x: TensorType, **_: object) -> TensorType:
    """The result has the type of the only operand, which must be a float."""
    require(x.dtype.is_float, f"needs a float tensor, not {x.dtype}")
    return x


def widened(x: Tensor) -> Tensor:
    """For decompositions: x in float32 if it is narrower."""
    return cast(x, dtype=float32) if x.dtype.bits < 32 else x


def in_dtype(x: Tensor, dtype: DType) -> Tensor:
    """For decompositions: x converted to `dtype` if it has another one."""
    return x if x.dtype == dtype else cast(x, dtype=dtype)


def narrowed(y: Tensor, x: Tensor) -> Tensor:
    """For decompositions: y rounded to the dtype of x if it has another one."""
    return in_dtype(y, x.dtype)


@op(tolerance=Tolerance.EXACT)
def cast(x: Tensor, *, dtype: DType) -> Tensor:
    """Convert to another dtype.

    To a float with one rounding, ties to even, overflow to infinity, or undefined in formats without infinity; to an
    integer by truncation, undefined beyond its range; to bool: whether it is not zero.
    """
    if dtype.is_float:
        return (
            numeric.store(x, dtype) if hasattr(type(x), "__word__") else numeric.store(np.asarray(x, np.float64), dtype)
        )
    if dtype is bool_:
        return x != 0
    whole = np.trunc(x)
    return whole if hasattr(type(x), "__word__") else np.asarray(whole).astype(dtype.numpy)


@cast.infer
def _(x: TensorType, *, dtype: DType) -> TensorType:
    return TensorType(dtype, x.shape)


@op(tolerance=Tolerance.EXACT)
def neg(x: Tensor) -> Tensor:
    """-x."""
    return np.negative(x)


@op(tolerance=Tolerance.EXACT)
def abs(x: Tensor) -> Tensor:
    """The absolute value."""
    return np.abs(x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def exp(x: Tensor) -> Tensor:
    """e to the power x."""
    return np.exp(x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def log(x: Tensor) -> Tensor:
    """Natural logarithm; -inf at zero, NaN below."""
    return np.log(x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def sin(x: Tensor) -> Tensor:
    """Sine of an angle in radians."""
    return np.sin(x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def cos(x: Tensor) -> Tensor:
    """Cosine of an angle in radians."""
    return np.cos(x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return np.tanh(x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def erf(x: Tensor) -> Tensor:
    """Error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    return numeric.erf(x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return numeric.sigmoid(x)


@op(tolerance=Tolerance.ELEMENTWISE)
def sqrt(x: Tensor) -> Tensor:
    """Square root; NaN below zero."""
    return np.sqrt(x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x); infinity at zero."""
    return numeric.rsqrt(x)


@op(tolerance=Tolerance.ELEMENTWISE)
def square(x: Tensor) -> Tensor:
    """x times x."""
    return np.square(x)


@op(tolerance=Tolerance.ELEMENTWISE)
def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b."""
    return np.add(a, b)


@op(tolerance=Tolerance.ELEMENTWISE)
def sub(a: Tensor, b: Tensor) -> Tensor:
    """a - b."""
    return np.subtract(a, b)


@op(tolerance=Tolerance.ELEMENTWISE)
def mul(a: Tensor, b: Tensor) -> Tensor:
    """a * b."""
    return np.multiply(a, b)


@op(tolerance=Tolerance.ELEMENTWISE)
def div(a: Tensor, b: Tensor) -> Tensor:
    """a / b for floats, by IEEE rules at zero."""
    return np.divide(a, b)


@op(tolerance=Tolerance.EXACT)
def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger of two elements; NaN if either is NaN."""
    return np.maximum(a, b)


@op(tolerance=Tolerance.EXACT)
def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller of two elements; NaN if either is NaN."""
    return np.minimum(a, b)


@op(tolerance=Tolerance.EXACT)
def eq(a: Tensor, b: Tensor) -> Tensor:
    """a == b, as bool; NaN equals nothing."""
    return np.equal(a, b)


@op(tolerance=Tolerance.EXACT)
def lt(a: Tensor, b: Tensor) -> Tensor:
    """a < b, as bool."""
    return np.less(a, b)


@op(tolerance=Tolerance.EXACT)
def le(a: Tensor, b: Tensor) -> Tensor:
    """a <= b, as bool."""
    return np.less_equal(a, b)


@op(tolerance=Tolerance.EXACT)
def logical_and(a: Tensor, b: Tensor) -> Tensor:
    """Both of two bool tensors."""
    return np.logical_and(a, b)


@op(tolerance=Tolerance.EXACT)
def logical_or(a: Tensor, b: Tensor) -> Tensor:
    """Either of two bool tensors."""
    return np.logical_or(a, b)


@op(tolerance=Tolerance.EXACT)
def logical_not(x: Tensor) -> Tensor:
    """The opposite of a bool tensor."""
    return np.logical_not(x)


@op(tolerance=Tolerance.EXACT)
def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where `condition` (bool) holds, else b."""
    return np.where(condition, a, b)


@where.infer
def _(condition: TensorType, a: TensorType, b: TensorType) -> TensorType:
    require(condition.dtype is bool_, f"the condition must be bool, not {condition.dtype}")
    kept = joined(a, b)
    return TensorType(kept.dtype, broadcast(condition.shape, kept.shape))


@op(tolerance=Tolerance.ELEMENTWISE)
def reciprocal(x: Tensor) -> Tensor:
    """1 / x, by IEEE rules at zero."""
    return 1.0 / x


@op(tolerance=Tolerance.EXACT)
def floor(x: Tensor) -> Tensor:
    """The largest integer not above x, as a float."""
    return np.floor(x)


@op(tolerance=Tolerance.EXACT)
def round(x: Tensor) -> Tensor:
    """The nearest integer, halves to the even one, as a float."""
    return np.rint(x)


@op(tolerance=Tolerance.EXACT)
def isfinite(x: Tensor) -> Tensor:
    """Whether x is neither infinite nor NaN, as bool."""
    return np.isfinite(x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def pow(a: Tensor, b: Tensor) -> Tensor:
    """a to the power b; 1 where b is 0, NaN for a negative a and a b that is no integer (IEEE 754-2019, section 9.2).

    Integers wrap, and their exponents must not be negative.
    """
    return np.power(a, b)


@op(tolerance=Tolerance.EXACT)
def clamp(x: Tensor, *, low: float | int | None = None, high: float | int | None = None) -> Tensor:
    """x, but at least `low` and then at most `high`; NaN stays NaN."""
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


@op(tolerance=Tolerance.EXACT)
def bitwise_and(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in both of two integers."""
    return np.bitwise_and(a, b)


@op(tolerance=Tolerance.EXACT)
def bitwise_shift(x: Tensor, *, bits: int) -> Tensor:
    """x shifted left by `bits`, or right by -bits, where a signed integer keeps its sign."""
    return np.left_shift(x, bits) if bits >= 0 else np.right_shift(x, -bits)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x) (Elfwing et al. 2017)."""
    return x * numeric.sigmoid(x)


@silu.decompose
def _(x: Tensor) -> Tensor:
    wide = widened(x)
    return narrowed(mul(wide, sigmoid(wide)), x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """x times the normal distribution function (Hendrycks and Gimpel 2016).

    "none": 0.5 x (1 + erf(x / sqrt 2)); "tanh": 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
    """
    if approximate == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))
    return 0.5 * x * (1.0 + numeric.erf(x * math.sqrt(0.5)))


@gelu.decompose
def _(x: Tensor, *, approximate: str) -> Tensor:
    wide = widened(x)
    if approximate == "tanh":
        inner = mul(add(wide, mul(mul(mul(wide, wide), wide), 0.044715)), math.sqrt(2 / math.pi))
        return narrowed(mul(mul(wide, 0.5), add(tanh(inner), 1.0)), x)
    return narrowed(mul(mul(wide, 0.5), add(erf(mul(wide, math.sqrt(0.5))), 1.0)), x)


@gelu.infer
def _(x: TensorType, *, approximate: str) -> TensorType:
    require(approximate in ("none", "tanh"), f"approximate must be 'none' or 'tanh', not {approximate!r}")
    return floating(x)


for _op in (neg, abs, square):
    _op.infer(number)
for _op in (exp, log, sin, cos, tanh, erf, sigmoid, sqrt, rsqrt, silu):
    _op.infer(floating)
for _pair in (add, sub, mul, maximum, minimum):
    _pair.infer(calculated)
for _pair in (eq, lt, le):
    _pair.infer(compared)


@div.infer
def _(a: TensorType, b: TensorType) -> TensorType:
    require(a.dtype.is_float, f"div is for floats, not {a.dtype}")
    return joined(a, b)


@logical_not.infer
def _(x: TensorType) -> TensorType:
    require(x.dtype is bool_, f"needs a bool tensor, not {x.dtype}")
    return x


def _both(a: TensorType, b: TensorType) -> TensorType:
    require(a.dtype is bool_ and b.dtype is bool_, "both operands must be bool")
    return joined(a, b)


for _pair in (logical_and, logical_or):
    _pair.infer(_both)


for _op in (reciprocal, floor, round):
    _op.infer(floating)
pow.infer(calculated)


@isfinite.infer
def _(x: TensorType) -> TensorType:
    return TensorType(bool_, floating(x).shape)


@clamp.infer
def _(x: TensorType, *, low: float | int | None, high: float | int | None) -> TensorType:
    require(low is None or high is None or low <= high, f"low {low} is above high {high}")
    whole = all(end is None or isinstance(end, int) for end in (low, high))
    require(x.dtype.is_float or whole, f"the ends of {x.dtype} must be integers, not {low} and {high}")
    return number(x)


@bitwise_and.infer
def _(a: TensorType, b: TensorType) -> TensorType:
    require(a.dtype.is_integer, f"needs integers, not {a.dtype}")
    return joined(a, b)


@bitwise_shift.infer
def _(x: TensorType, *, bits: int) -> TensorType:
    require(x.dtype.is_integer, f"needs integers, not {x.dtype}")
    require(-x.dtype.bits < bits < x.dtype.bits, f"cannot shift {x.dtype} by {bits} bits")
    return x
