"""Error rules of the four operations, powers and matmul.

Running error analysis after Higham, Accuracy and Stability of Numerical Algorithms (2002), sections 3.1 to 3.5 and 4.2:
incoming errors are propagated to all orders, and a rounded operation adds u (|r| + e) + eta of the declared format.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from xinheng.core.ir.dtype import DType, float64, round_to

from .bounded import UFUNCS, Array, Bounded, definite, is_exact, spread


def _arithmetic(ufunc: np.ufunc) -> Callable[[Callable[..., Bounded]], Callable[..., Bounded]]:
    """Register a rule for settled operands that are all integers, or all floats."""

    def register(rule: Callable[..., Bounded]) -> Callable[..., Bounded]:
        def call(*operands: Bounded) -> Bounded:
            operands = tuple(x.settled() for x in operands)
            if not all(x.integer for x in operands):
                operands = tuple(x.floated() for x in operands)
            return rule(*operands)

        UFUNCS[ufunc] = call
        return call

    return register


def _finish(x: Bounded, v: Array, e: Array) -> Bounded:
    return x.like(v, definite(v, e)) if x.integer else x.rounded(v, e)


@_arithmetic(np.add)
def add(a: Bounded, b: Bounded) -> Bounded:
    return _finish(a, a.v + b.v, a.e + b.e)


@_arithmetic(np.subtract)
def subtract(a: Bounded, b: Bounded) -> Bounded:
    return _finish(a, a.v - b.v, a.e + b.e)


@_arithmetic(np.multiply)
def multiply(a: Bounded, b: Bounded) -> Bounded:
    v = np.asarray(a.v * b.v)
    e = _times(np.abs(a.v), b.e) + _times(np.abs(b.v), a.e) + _times(a.e, b.e)
    if not np.isfinite(v).all():
        for x, other in ((a, b), (b, a)):
            e = np.where(np.isinf(x.v) & (x.e == 0), np.where(_maybe_zero(other), np.inf, 0.0), e)
        e = np.where(np.isinf(a.e) | np.isinf(b.e), np.inf, e)
    return _finish(a, v, e)


def _times(size: Array, e: Array) -> Array:
    """size * e, where no error stays none and an unknown one unknown, whatever it is multiplied with."""
    product = np.asarray(size * e)
    if np.isfinite(product).all():
        return product
    return np.where(e == 0, 0.0, np.where(np.isinf(e), np.inf, product))


def _maybe_zero(x: Bounded) -> NDArray[np.bool_]:
    """Zero is among the values a kernel may hold, without being certain."""
    return (x.e > 0) & ~(np.abs(x.v) > x.e)


@_arithmetic(np.square)
def square(a: Bounded) -> Bounded:
    return multiply(a, a)


@_arithmetic(np.divide)
def divide(a: Bounded, b: Bounded) -> Bounded:
    """Good to two units, so that a product with the rounded reciprocal passes."""
    a, b = a.floated(), b.floated()
    v, room = np.asarray(a.v / b.v), np.abs(b.v) - b.e
    e = (a.e + _times(np.abs(v), b.e)) / np.where(room > 0, room, 1.0)
    if not np.isfinite(v).all():
        e = np.where(np.isinf(a.v) & (a.e == 0) & (room > 0), 0.0, e)
        e = np.where((b.v == 0) & (b.e == 0), np.where(_maybe_zero(a), np.inf, 0.0), e)
    return a.rounded(v, np.where(_maybe_zero(b) | np.isinf(a.e), np.inf, e), 2.0)


@_arithmetic(np.reciprocal)
def reciprocal(a: Bounded) -> Bounded:
    return divide(a.like(1.0), a)


@_arithmetic(np.fmod)
def remainder(a: Bounded, b: Bounded) -> Bounded:
    """Exact of exact operands; otherwise a whole quotient that no error can change, or no promise."""
    v = np.asarray(np.fmod(a.v, b.v))
    if is_exact(a.e) and is_exact(b.e):
        return a.like(v)
    corners = [np.trunc(x / y) for x in (a.v - a.e, a.v + a.e) for y in (b.v - b.e, b.v + b.e)]
    sure = (np.minimum.reduce(corners) == np.maximum.reduce(corners)) & ~_maybe_zero(b)
    return a.like(v, definite(v, np.where(sure, a.e + np.abs(corners[0]) * b.e, np.inf)))


@_arithmetic(np.power)
def power(a: Bounded, b: Bounded) -> Bounded:
    """2 and 3 are products; otherwise monotone in both operands where the base is positive, and no promise elsewhere.

    Kernels may go through exp(b log a), whose error grows with the exponent.
    """
    if b.ndim == 0 and b.e == 0 and float(b.v) in (2.0, 3.0):
        squared = multiply(a, a)
        return squared if b.v == 2 else multiply(squared, a)
    a, b = a.floated(), b.floated()
    corners = [x**y for x in (a.v - a.e, a.v + a.e) for y in (b.v - b.e, b.v + b.e)]
    v = np.asarray(a.v**b.v)
    e = spread(v, np.minimum.reduce(corners), np.maximum.reduce(corners), a.e, b.e)
    odd = np.isnan(corners).any(axis=0) & ~np.isnan(corners).all(axis=0)  # such as NaN**0, which is 1
    e = np.where(((a.e == 0) | (a.v > a.e)) & ~odd, e, np.inf)
    log = np.abs(b.v * np.log(np.abs(a.v)))
    grade = 2 * a.rules.ulps
    return a.rounded(v, e, grade + (grade + 1) * np.where(np.isfinite(log) & (v != 0), log, 0.0))


@_arithmetic(np.matmul)
def matmul(a: Bounded, b: Bounded) -> Bounded:
    if a.rules.inputs is not None and not a.integer:
        a, b = (_cut(x, a.rules.inputs) for x in (a, b))
    v, terms = np.asarray(a.v @ b.v), a.shape[-1]
    parts = [np.abs(a.v), a.e, np.abs(b.v), b.e]
    clean = all(np.isfinite(part).all() for part in parts)
    av, ae, bv, be = parts if clean else [np.where(np.isfinite(part), part, 0.0) for part in parts]
    e = np.zeros(v.shape)
    # Zero errors are skipped and the rest made contiguous: zero strides keep numpy off BLAS.
    if not is_exact(be):
        e = e + av @ np.ascontiguousarray(be)
    if not is_exact(ae):
        e = e + np.ascontiguousarray(ae) @ (bv + be)
    if not a.integer:
        size = np.asarray(av @ bv + e)
        e = accumulated(a, v, e, size, terms) + a.rules.unit * size + 2 * terms * a.rules.eta
    if not clean:
        e = np.where(_unknown_products(a, b), np.inf, e)
    return a.like(v, definite(v, e))


def _cut(x: Bounded, dtype: DType) -> Bounded:
    """Held in a narrower format by a unit that may round or truncate: off by up to a whole ulp."""
    e = x.e + 2 * dtype.unit_roundoff * (np.abs(x.v) + x.e) + 2 * dtype.eta
    unchanged = (x.e == 0) & (round_to(x.v, dtype) == x.v)
    return x.like(x.v, definite(x.v, np.where(unchanged, 0.0, e)))


def _unknown_products(a: Bounded, b: Bounded) -> NDArray[np.bool_]:
    """Elements of a @ b that an unknown operand enters, or a certain infinity times what may be zero."""

    def meet(x: NDArray[np.bool_], y: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.asarray((x.astype(np.float64) @ y.astype(np.float64)) > 0)

    lost = meet(np.isinf(a.e), np.ones(b.shape, bool)) | meet(np.ones(a.shape, bool), np.isinf(b.e))
    return lost | meet(np.isinf(a.v), _maybe_zero(b)) | meet(_maybe_zero(a), np.isinf(b.v))


def accumulated(x: Bounded, v: Array, e: Array, size: Array, terms: int) -> Array:
    """Error of sums `v` in any admitted order. `e` sums the errors of their terms, `size` magnitudes and errors.

    `size` leaves out terms that are not finite. Infinite where a partial sum may overflow while the sum need not.
    """
    rules = x.rules
    g = rules.gamma(terms, v, size)
    total = e + g * size + rules.underflow(terms)
    largest = rules.accumulator.largest
    # Terms of one sign add up to `most`, of the other to `least`, as far as float64 sums can tell.
    slack = e + 2 * terms * float64.unit_roundoff * size
    most, least = (np.where(np.isfinite(v), (size + side * np.abs(v) + slack) / 2, size) for side in (1, -1))
    risky = ~np.isnan(v) & (most * (1 + g) > largest)
    if risky.any():
        # Beyond the range whatever the order; a narrower partial format ends elsewhere than `limits` will see.
        certain = (np.abs(v) - total > largest) & (least <= largest) & (rules.partial is None)
        total = np.where(risky & ~certain, np.inf, total)
    return definite(v, np.where(np.isinf(e), np.inf, total))
