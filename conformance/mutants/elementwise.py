"""Mutants of elementwise arithmetic, comparisons and conversions: NaN, ties, widths, signs."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir import DType
from xinheng.core.ir.dtype import bfloat16, bool_, float16, float32, int64, round_to
from xinheng.core.ops import OPSET

from ..call import Call
from .mutant import given, having, spoiled, wrong
from .norms import low
from .storage import truncated

INTEGERS = "add sub mul"

wrong("maximum", "nan lost", "takes the number of a number and NaN", np.fmax)
wrong("minimum", "nan lost", "takes the number of a number and NaN", np.fmin)
wrong("sub", "exchanged", "subtracts the first from the second", lambda a, b: b - a)
wrong("div", "exchanged", "divides the second by the first", lambda a, b: b / a)
wrong(
    "div",
    "by reciprocal in bf16",
    "multiplies by a bfloat16 reciprocal",
    lambda a, b: a * low(1 / b),
    (float32, float16),
)
wrong("div", "zero kept", "returns 0 for a division by zero", lambda a, b: np.where(b == 0, np.float32(0), a / b))


def _where_not(condition: Any, a: Any, b: Any) -> Any:
    return np.where(condition, b, a)


wrong("where", "polarity", "takes the second where the condition holds", _where_not)
wrong("lt", "or equal", "takes equal for less", np.less_equal)
wrong("le", "strictly", "takes less for less or equal", np.less)
wrong("eq", "nan equal", "takes NaN for equal to itself", lambda a, b: (a == b) | ((a != a) & (b != b)))
wrong("lt", "not less", "returns not (a >= b), true for NaN", lambda a, b: ~np.asarray(a >= b))
wrong("isfinite", "nan finite", "takes NaN for finite", lambda x: ~np.isinf(x))
wrong("isfinite", "largest infinite", "takes the largest float16 for infinite", lambda x: np.abs(x) < 65504)
wrong("logical_and", "or", "takes either for both", np.logical_or)
wrong("logical_or", "exclusive", "denies where both hold", np.logical_xor)
wrong("logical_not", "nothing done", "returns its operand", lambda x: x)


def _abs_sign(x: Any) -> Any:
    return np.where(x > 0, x, np.where(np.isinf(x), x, -x)) if x.dtype.kind == "f" else np.abs(x)


wrong("abs", "infinity kept", "keeps the sign of infinity", _abs_sign)
wrong("square", "sign kept", "keeps the sign", lambda x: x * np.abs(x))


def _integers_through(kind: DType, narrow: type) -> Any:
    """Integers of a width computed in a narrower type."""

    def change(call: Call) -> Call | None:
        if any(v is not None and np.asarray(v).dtype != kind.numpy for v in call.values):
            return None
        return having(call, **{
            o.name: np.asarray(v).astype(narrow).astype(kind.numpy)
            for o, v in zip(OPSET[call.op].operands, call.values, strict=False)
            if v is not None
        })  # fmt: skip

    return change


given(f"{INTEGERS} neg abs", "int64 as int32", "computes in 32 bits", _integers_through(int64, np.int32), ())
given(f"{INTEGERS} sum", "int64 as float32", "computes integers in float32", _integers_through(int64, np.float32), ())


def _saturating(call: Call, made: Any) -> Any:
    """Unsigned sums that stop at the end of the range."""
    if call.values[0] is None or np.asarray(call.values[0]).dtype != np.uint8:
        return None
    a, b = (np.asarray(v).astype(np.int64) for v in call.values[:2])
    exact = {"add": a + b, "sub": a - b, "mul": a * b}[call.op]
    return (np.clip(exact, 0, 255).astype(np.uint8),)


spoiled(INTEGERS, "saturates", "stops at the ends of the range of integers instead of wrapping", _saturating, ())

# ----------------------------------------------------------------------------------------------------- whole numbers
wrong(
    "round", "away from zero", "rounds halves away from zero", lambda x: np.trunc(x + np.copysign(np.float32(0.5), x))
)
wrong("round", "half up", "rounds halves up", lambda x: np.floor(x + np.float32(0.5)))
wrong("round", "truncated", "cuts the fraction off", np.trunc)
wrong("floor", "truncated", "rounds towards zero", np.trunc)
wrong("fmod", "sign of b", "gives the remainder the sign of the divisor", np.mod)
wrong(
    "fmod",
    "through a quotient",
    "subtracts b times a rounded quotient",
    lambda a, b: a - b * np.trunc(a / b) * (1 + 2**-20),
    (float32,),
)
wrong("trunc_div", "floor", "rounds towards minus infinity", np.floor_divide)


def _clamped(x: Any, *, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else np.fmax(x, low)
    return x if high is None else np.fmin(x, high)


def _low_only(x: Any, *, low: Any = None, high: Any = None) -> Any:
    return x if low is None else np.maximum(x, low)


wrong("clamp", "nan clamped", "makes NaN a number", _clamped)
wrong("clamp", "high ignored", "never bounds from above", _low_only)


def _logical(x: Any, *, bits: int) -> Any:
    """A right shift that fills with zeros."""
    if bits >= 0:
        return np.left_shift(x, bits)
    unsigned = x.view(np.dtype(f"u{x.dtype.itemsize}"))
    return np.right_shift(unsigned, -bits).view(x.dtype)


wrong("bitwise_shift", "zero fill", "fills negative numbers with zeros", _logical)
wrong(
    "bitwise_shift",
    "direction",
    "shifts the other way",
    lambda x, *, bits: OPSET["bitwise_shift"].reference(x, bits=-bits),
)
wrong("bitwise_and", "or", "takes either bit", np.bitwise_or)


def _by_logarithm(a: Any, b: Any) -> Any:
    if np.asarray(a).dtype.kind != "f":
        return np.power(a, b)
    return np.exp(b * np.log(a))


wrong("pow", "by logarithm", "is NaN for every negative base", _by_logarithm)
wrong("pow", "square only", "takes every exponent for 2", lambda a, b: a * a + 0 * b)


# -------------------------------------------------------------------------------------------------------- conversions
def _cast(rule: Any, floats: bool = True) -> Any:
    """A cast by another rule, to floats or to integers; the reference for the rest."""

    def program(x: Any, *, dtype: DType) -> Any:
        if dtype.is_float != floats or dtype is bool_:
            return OPSET["cast"].reference(x, dtype=dtype)
        return rule(x, dtype)

    return program


def _bits(x: Any, dtype: DType) -> Any:
    """Values rounded half up by adding to the bits, which makes some NaN infinite and the largest number too."""
    values = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        quantum = np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 1, dtype.emin) - dtype.precision + 1)
        return np.where(np.isfinite(values), np.floor(values / quantum + 0.5) * quantum, values)


wrong("cast", "half up", "rounds halves up", _cast(_bits), (float16, bfloat16))
wrong(
    "cast",
    "nan to infinity",
    "loses NaN",
    _cast(lambda x, dtype: np.where(np.isnan(x), np.inf, round_to(x, dtype))),
)
wrong("cast", "truncated", "cuts bits off", _cast(truncated), (float16, bfloat16))
wrong("cast", "rounded to integers", "rounds to the nearest integer", _cast(lambda x, dtype: _nearest(x, dtype), False))
wrong("cast", "floored", "rounds down to integers", _cast(lambda x, dtype: _integers(np.floor(x), dtype), False))


def _integers(x: Any, dtype: DType) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(dtype.numpy)


def _nearest(x: Any, dtype: DType) -> Any:
    return _integers(np.rint(x) if np.asarray(x).dtype.kind == "f" else x, dtype)


def _bool_through_int(x: Any, *, dtype: DType) -> Any:
    made = OPSET["cast"].reference(x, dtype=dtype)
    return np.trunc(x) != 0 if dtype is bool_ and np.asarray(x).dtype.kind == "f" else made


wrong("cast", "bool through int", "takes fractions for false", _bool_through_int)


def _zero_sign(call: Call, made: Any) -> Any:
    return tuple(np.asarray(x) + 0.0 if np.asarray(x).dtype.kind == "f" else x for x in made)


spoiled("neg cast reshape", "minus zero", "loses the sign of zero", _zero_sign)
