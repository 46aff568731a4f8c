"""Error rules of one-operand functions, of rounding to integers or a storage format, and of the larger of two.

All of them but sine and cosine are monotone: the values at both ends of the operand give the spread to all orders,
without a derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xinheng.core.ir import numeric
from xinheng.core.ir.dtype import DType

from .bounded import UFUNCS, WORDS, Bounded, definite, spread

Rule = Callable[[Bounded], Bounded]


def _graded(f: Callable[[Any], Any]) -> Rule:
    return lambda x: x.monotone(f, 2 * x.rules.ulps)


def _exponential(f: Callable[[Any], Any]) -> Rule:
    """The extra |x| covers the scaling that most kernels use, exp(x) = exp2(x log2 e)."""
    return lambda x: x.monotone(f, 2 * x.rules.ulps + np.where(np.isfinite(x.v), np.abs(x.v), 0.0))


def _wave(f: Callable[[Any], Any]) -> Rule:
    """Absolute, since the slope is at most 1 and zeros are crossed."""

    def rule(x: Bounded) -> Bounded:
        x = x.settled().floated()
        grade = 2 * x.rules.ulps * x.rules.unit
        return x.rounded(f(x.v), np.where(np.isinf(x.e), np.inf, np.minimum(x.e, 2.0) + grade), 0.0)

    return rule


def _step(f: Callable[[Any], Any]) -> Rule:
    """Exact: an integer moves by one only where a tie lies within the error, and counts exactly from then on."""

    def rule(x: Bounded) -> Bounded:
        x = x.settled()
        v = np.asarray(f(x.v))
        return x.like(v, definite(v, spread(v, f(x.v - x.e), f(x.v + x.e), x.e)), integer=True)

    return rule


def maximum(a: Bounded, b: Bounded) -> Bounded:
    if a.integer != b.integer:
        a, b = a.floated(), b.floated()
    v = np.maximum(a.v, b.v)
    e = spread(v, np.maximum(a.v - a.e, b.v - b.e), np.maximum(a.v + a.e, b.v + b.e), a.e, b.e)
    return a.like(v, definite(v, e))


def absolute(x: Bounded) -> Bounded:
    return x.like(np.abs(x.v), x.e)


def negative(x: Bounded) -> Bounded:
    return x.like(-x.v, x.e)


def minimum(a: Bounded, b: Bounded) -> Bounded:
    return negative(maximum(negative(a), negative(b)))


def _sigmoid(x: Bounded) -> Bounded:
    """Off by a smallest normal too: 1 / (1 + exp(-x)) is 0 once exp overflows, while the true value is a subnormal."""
    y = x.monotone(numeric.sigmoid, 2 * x.rules.ulps)
    return y.like(y.v, y.e + x.rules.compute.smallest_normal * np.isfinite(y.v))


def _store(x: Bounded, dtype: DType, known: bool = True) -> Bounded:
    """Evaluated, the ends bound it: mostly no error at all, and one ulp where a tie is near."""
    x = x.settled().floated()
    if known and x.rules.evaluate:
        v = x.rules.kept(x.v, dtype)
        return x.like(v, definite(v, spread(v, *x.limits(dtype), x.e)))
    size = np.abs(x.v) + x.e
    e = x.e + dtype.unit_roundoff * size + (dtype.smallest_normal if x.rules.flush else dtype.eta)
    e = np.where(size * (1 + dtype.unit_roundoff) > dtype.largest, np.inf, e)
    return x.like(x.v, np.where(np.isfinite(x.v), e, x.e))


def _point(x: Bounded, name: str, known: bool = True) -> Bounded:
    storage = x.rules.storage
    return x if storage is None or name not in x.rules.points else _store(x, storage, known)


def _shift(x: Bounded) -> Bounded:
    """Any nearby value will do, so the error is dropped; an unknown value is not nearby."""
    return x.like(x.v, np.where(np.isinf(x.e), np.inf, 0.0))


UFUNCS.update({f: _graded(f) for f in (np.log, np.log2, np.log1p, np.tanh, np.arctan)})
UFUNCS.update({f: _exponential(f) for f in (np.exp, np.exp2, np.expm1)})
UFUNCS.update({f: _wave(f) for f in (np.sin, np.cos)})
UFUNCS.update({f: _step(f) for f in (np.rint, np.floor, np.ceil, np.trunc, np.sign)})
UFUNCS.update({np.absolute: absolute, np.fabs: absolute, np.negative: negative, np.positive: lambda x: x})
UFUNCS.update({np.maximum: maximum, np.minimum: minimum, np.sqrt: lambda x: x.monotone(np.sqrt, 2.0)})
WORDS.update({"erf": _graded(numeric.erf), "sigmoid": _sigmoid, "rsqrt": lambda x: x.monotone(numeric.rsqrt, 4.0)})
WORDS.update({"store": _store, "point": _point, "shift": _shift})
