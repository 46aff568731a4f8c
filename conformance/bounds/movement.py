"""Error rules of what moves or selects values, and of what looks at values only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .bounded import FUNCTIONS, UFUNCS, Bounded, MissingRule


def _by_value(f: Any) -> Callable[..., Any]:
    """Comparisons and selection, as plain arrays: right for masks; what depends on ties is judged by `selection`."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        return f(*(a.v if isinstance(a, Bounded) else a for a in args), **kwargs)

    return rule


def _move(f: Any) -> Callable[..., Any]:
    """The same move on values and errors."""

    def rule(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Bounded) or any(isinstance(a, Bounded) for a in (*args, *kwargs.values())):
            raise MissingRule(f"numpy.{f.__name__}: only its first argument may be bounded")
        v, e = f(x.v, *args, **kwargs), f(x.e, *args, **kwargs)
        return [x.like(*part) for part in zip(v, e, strict=True)] if isinstance(v, list) else x.like(v, e)

    return rule


def _where(mask: Any, *branches: Any) -> Bounded:
    if len(branches) != 2 or isinstance(mask, Bounded):
        raise MissingRule("numpy.where: needs a plain mask and two branches")
    a, b = _alike(branches)
    return a.like(np.where(mask, a.v, b.v), np.where(mask, a.e, b.e))


def _alike(operands: Sequence[Any]) -> list[Bounded]:
    """All wrapped, and all integers or all floats."""
    first = next(x for x in operands if isinstance(x, Bounded))
    wrapped = [first.wrap(x) for x in operands]
    return wrapped if all(x.integer for x in wrapped) else [x.floated() for x in wrapped]


def _join(f: Any) -> Callable[..., Bounded]:
    def rule(arrays: Sequence[Any], axis: int | None = 0) -> Bounded:
        parts = _alike(arrays)
        return parts[0].like(f([x.v for x in parts], axis), f([x.e for x in parts], axis))

    return rule


def _full_like(x: Bounded, fill_value: Any, dtype: Any = None) -> Any:
    if dtype is not None and np.dtype(dtype).kind in "biu":
        return np.full(x.shape, fill_value, dtype)
    c = x.wrap(float(fill_value) if isinstance(fill_value, int) else fill_value)
    return c.like(np.broadcast_to(c.v, x.shape), np.broadcast_to(c.e, x.shape))


def _filled(value: float) -> Callable[..., Any]:
    return lambda a, dtype=None: _full_like(a, value, dtype)


_LOGIC: tuple[Any, ...] = (
    *(np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
    *(np.logical_and, np.logical_or, np.logical_xor, np.logical_not, np.isnan, np.isinf, np.isfinite, np.signbit),
)
_LOOKS: tuple[Any, ...] = (np.argmax, np.argmin, np.argsort, np.shape, np.ndim, np.size)
_MOVES: tuple[Any, ...] = (
    *(np.reshape, np.transpose, np.swapaxes, np.moveaxis, np.expand_dims, np.squeeze, np.ravel, np.copy),
    *(np.broadcast_to, np.repeat, np.tile, np.flip, np.roll, np.take, np.take_along_axis, np.tril, np.triu),
    *(np.split, np.array_split),
)
UFUNCS.update({f: _by_value(f) for f in _LOGIC})
FUNCTIONS.update({f: _by_value(f) for f in _LOOKS})
FUNCTIONS.update({f: _move(f) for f in _MOVES})
FUNCTIONS.update({np.where: _where, np.concatenate: _join(np.concatenate), np.stack: _join(np.stack)})
FUNCTIONS.update({np.zeros_like: _filled(0.0), np.ones_like: _filled(1.0), np.full_like: _full_like})
