"""Error rules of sums, means and extremes along axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arithmetic import accumulated, divide, square, subtract
from .bounded import FUNCTIONS, Array, Bounded, MissingRule, definite, spread
from .monotone import maximum, minimum, negative


def _sum(x: Bounded, axis: Any = None, *, keepdims: bool = False) -> Bounded:
    x = x.settled()
    v, e = (np.asarray(np.sum(part, axis=axis, keepdims=keepdims)) for part in (x.v, x.e))
    if x.integer:
        return x.like(v, definite(v, e))
    size = np.asarray(np.sum(_magnitude(x), axis=axis, keepdims=keepdims) + e)
    return x.like(v, accumulated(x, v, e, size, x.size // max(v.size, 1)))


def _magnitude(x: Bounded) -> Array:
    return np.where(np.isfinite(x.v), np.abs(x.v), 0.0)


def _mean(x: Bounded, axis: Any = None, *, keepdims: bool = False) -> Bounded:
    total = _sum(x.floated(), axis, keepdims=keepdims)
    return divide(total, total.wrap(x.size // max(total.size, 1)))


def _var(x: Bounded, axis: Any = None, *, ddof: int = 0, keepdims: bool = False) -> Bounded:
    """Two passes. One pass, mean(x^2) - mean(x)^2, is another program: a reference that means it writes it out."""
    total = _sum(square(subtract(x.floated(), _mean(x, axis, keepdims=True))), axis, keepdims=keepdims)
    return divide(total, total.wrap(x.size // max(total.size, 1) - ddof))


def _cumsum(x: Bounded, axis: int | None = None) -> Bounded:
    x = x.settled()
    if axis is None:
        x, axis = x.reshape(-1), 0
    v, e = np.cumsum(x.v, axis), np.cumsum(x.e, axis)
    if x.integer:
        return x.like(v, definite(v, e))
    return x.like(v, accumulated(x, v, e, np.cumsum(_magnitude(x), axis) + e, x.shape[axis]))


def _max(x: Bounded, axis: Any = None, *, keepdims: bool = False, initial: float | None = None) -> Bounded:
    start: dict[str, Any] = {} if initial is None else {"initial": initial}

    def top(part: Array) -> Array:
        return np.asarray(np.max(part, axis=axis, keepdims=keepdims, **start))

    v = top(x.v)
    worst = np.asarray(np.max(x.e, axis=axis, keepdims=keepdims, initial=0.0))
    return x.like(v, definite(v, spread(v, top(x.v - x.e), top(x.v + x.e), worst)))


def _min(x: Bounded, axis: Any = None, *, keepdims: bool = False, initial: float | None = None) -> Bounded:
    start = None if initial is None else -initial
    return negative(_max(negative(x), axis, keepdims=keepdims, initial=start))


def _clip(x: Any, low: Any = None, high: Any = None, **named: Any) -> Bounded:
    low, high = named.pop("a_min", named.pop("min", low)), named.pop("a_max", named.pop("max", high))
    first = next(a for a in (x, low, high) if isinstance(a, Bounded))
    if named:
        raise MissingRule(f"numpy.clip: {', '.join(named)} is not for bounded operands")
    y = first.wrap(x)
    y = y if low is None else maximum(y, first.wrap(low))
    return y if high is None else minimum(y, first.wrap(high))


FUNCTIONS.update({np.sum: _sum, np.mean: _mean, np.var: _var, np.cumsum: _cumsum, np.clip: _clip})
FUNCTIONS.update({np.max: _max, np.amax: _max, np.min: _min, np.amin: _min})
