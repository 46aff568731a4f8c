"""Operands that are exact but in their sums: matrix products and sums along an axis go through an accumulator.

References are functional numpy, so that a kernel which accumulates in its own way is the reference on such operands.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.ir.dtype import DType, round_to

Array = NDArray[Any]
Accumulator = Callable[[Array, int], Array]
"""From float64 terms [..., n], of an operation that makes so many rows of results, to their sums [...]."""


class Accumulated(np.ndarray[Any, Any]):
    """A float64 array; `accumulated` makes a subclass for each accumulator, and what is computed of one is another."""

    @staticmethod
    def total(terms: Array, rows: int) -> Array:
        """The accumulator."""
        return np.asarray(terms.sum(axis=-1))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [_plain(x) for x in inputs]
        if "out" in kwargs:
            kwargs["out"] = tuple(map(_plain, kwargs["out"]))
        if ufunc is np.matmul and all(x.dtype.kind == "f" for x in plain):
            return self._like(self._product(*plain))
        axis = kwargs.get("axis")
        if ufunc is np.add and method == "reduce" and isinstance(axis, int) and plain[0].dtype.kind == "f":
            return self._like(self._sum(np.moveaxis(plain[0], axis, -1), axis, kwargs.get("keepdims", False)))
        return self._like(getattr(ufunc, method)(*plain, **kwargs))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self._like(super().__array_function__(func, types, args, kwargs))

    def _like(self, made: Any) -> Any:
        """What numpy returned as an operand of this kind, if it holds floats."""
        if isinstance(made, tuple | list):
            return type(made)(map(self._like, made))
        return made.view(type(self)) if isinstance(made, np.ndarray) and made.dtype == np.float64 else made

    def _product(self, a: Array, b: Array) -> Array:
        if a.ndim == 1:
            return np.asarray(self._product(a[None], b)[..., 0, :])
        columns, rows = np.swapaxes(b, -1, -2), a.shape[-2]
        made = [self.total(a[..., i, None, :] * columns, rows) for i in range(rows)]
        return np.stack(made, axis=-2) if made else np.matmul(a, b)

    def _sum(self, terms: Array, axis: int, keepdims: bool) -> Array:
        made = self.total(terms, terms[..., :1].size)
        return np.expand_dims(made, axis) if keepdims else made


def accumulated(accumulator: Accumulator) -> type[Accumulated]:
    """Operands of one accumulator."""

    class Made(Accumulated):
        @staticmethod
        def total(terms: Array, rows: int) -> Array:
            return accumulator(terms, rows)

    return Made


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, Accumulated) else x


def sequential(terms: Array, rows: int) -> Array:
    """One after the other in float32."""
    if not terms.shape[-1]:
        return np.zeros(terms.shape[:-1])
    return np.cumsum(terms, axis=-1, dtype=np.float32)[..., -1].astype(np.float64)


def partial_sums(kind: DType, chunk: int) -> Accumulator:
    """Exactly, but what has been summed is kept in `kind` after each `chunk` terms."""

    def run(terms: Array, rows: int) -> Array:
        held = np.zeros(terms.shape[:-1])
        for first in range(0, terms.shape[-1], chunk):
            held = round_to(held + np.sum(terms[..., first : first + chunk], axis=-1), kind)
        return held

    return run


def shuffled(seed: int = 0) -> Accumulator:
    """In float32, each time in another order, as if whoever comes first adds first."""
    calls = count()

    def run(terms: Array, rows: int) -> Array:
        order = np.random.default_rng((seed, next(calls))).permutation(terms.shape[-1])
        return sequential(terms[..., order], rows)

    return run


def shuffled_once(seed: int) -> Accumulator:
    """In float32, in an order that the seed tells and that stays."""

    def run(terms: Array, rows: int) -> Array:
        return sequential(terms[..., np.random.default_rng(seed).permutation(terms.shape[-1])], rows)

    return run


def by_rows(terms: Array, rows: int) -> Array:
    """In float32, from the other end if there are several rows: an order that depends on who else is there."""
    return sequential(terms[..., ::-1] if rows > 1 else terms, rows)
