"""Simulated chips with habits of their own: formats and orders of sums, cut operands, flush, saturation, rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.hal import KernelRegistry, ReferenceDevice
from xinheng.core.hal.reference import reference_kernels
from xinheng.core.ir import DType
from xinheng.core.ir.dtype import cast_to, dtype, float32, round_to
from xinheng.core.ops import OPSET

Array = NDArray[np.float64]
Term = Callable[[int], Array]
Adder = Callable[[Term, int], Array]
"""From the terms, by their index, and how many there are, to their sum."""


def sequential(kind: DType = float32) -> Adder:
    """One after another, each sum rounded to `kind`."""
    return lambda term, count: chained([term(k) for k in range(count)], kind)


def chained(terms: list[Array], kind: DType = float32) -> Array:
    if kind is float32:
        with np.errstate(over="ignore", invalid="ignore"):
            held = np.asarray(terms, np.float32)
            if np.array_equal(held, terms):  # fast, and the same where the terms are float32 too
                return np.asarray(np.add.accumulate(held, axis=0)[-1], np.float64)
    total = np.zeros_like(terms[0])
    for x in terms:
        total = rounded(total + x, kind)
    return total


def blocked(size: int, partial: DType = float32) -> Adder:
    """Blocks in float32, whose sums are added in `partial`."""

    def add(term: Term, count: int) -> Array:
        starts = range(0, count, size)
        return chained([chained([term(k) for k in range(i, min(i + size, count))]) for i in starts], partial)

    return add


def pairwise(term: Term, count: int) -> Array:
    """In halves of halves."""

    def half(low: int, high: int) -> Array:
        if high - low == 1:
            return term(low)
        middle = (low + high) // 2
        return rounded(half(low, middle) + half(middle, high), float32)

    return half(0, count)


def tiles(width: int) -> Adder:
    """As matrix units add: `width` terms and the sum so far at once, each cut to 24 bits below the largest."""

    def add(term: Term, count: int) -> Array:
        total = np.zeros_like(term(0))
        for i in range(0, count, width):
            parts = np.stack([total, *(term(k) for k in range(i, min(i + width, count)))])
            with np.errstate(invalid="ignore"):
                largest = np.abs(np.where(np.isinf(parts), 1.0, parts)).max(0)
                grid = np.exp2(np.floor(np.log2(np.maximum(largest, 1e-300))) - 23)
                total = rounded(np.where(np.isinf(parts), parts, np.trunc(parts / grid) * grid).sum(0), float32)
        return total

    return add


def rounded(x: Array, kind: DType) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(np.float64) if kind is float32 else round_to(x, kind)


def truncated(x: Array, kind: DType) -> Array:
    """Rounded towards zero."""
    y = round_to(x, kind)
    over = np.abs(y) > np.abs(x)
    step = np.exp2(np.floor(np.log2(np.maximum(np.abs(x), kind.smallest_normal))) + 1 - kind.precision)
    return np.where(over, y - np.copysign(step, x), y)


def half_up(x: Array, kind: DType) -> Array:
    """Rounded to nearest, ties away from zero."""
    step = np.exp2(np.floor(np.log2(np.maximum(np.abs(x), kind.smallest_normal))) + 1 - kind.precision)
    return round_to(np.copysign(np.floor(np.abs(x) / step + 0.5) * step, x), kind)


IN_ORDER = sequential()


@dataclass(frozen=True, eq=False)
class Chip:
    """The habits of a chip; `device()` makes one.

    Attributes:
        add: how sums are taken.
        inputs: to what float32 operands of products are cut.
        flush: subnormal operands and results become zero.
        saturate: results beyond the range become the largest number.
        store: how results are rounded.
        contracts: products are not rounded before they are added.
        functions: kernels of elementwise functions by name, in float64.
    """

    add: Adder = IN_ORDER
    inputs: DType | None = None
    flush: bool = False
    saturate: bool = False
    store: Callable[[Array, DType], Array] = rounded
    contracts: bool = False
    functions: dict[str, Callable[[Array], Array]] | None = None

    def device(self) -> ReferenceDevice:
        made = ReferenceDevice("test:chip", "a simulated chip")
        made.kernels = registry = KernelRegistry(reference_kernels())
        for name in ("matmul", "linear", "sum", "mul", "add", "cast"):
            registry.register(OPSET[name], name="chip", priority=1)(getattr(self, f"_{name}"))
        for name, function in (self.functions or {}).items():
            registry.register(OPSET[name], name="chip", priority=1)(self._elementwise(function))
        return made

    def _matmul(self, a: Any, b: Any) -> Any:
        kind = dtype(a.dtype.name)
        left, right = (self._cut(self._read(x), kind) for x in (a, b))
        columns, place = np.unique(right, axis=1, return_inverse=True)

        def term(k: int) -> Array:
            product = left[:, k, None] * columns[None, k, :]
            return product if self.contracts else rounded(product, float32)

        return self._stored(self.add(term, left.shape[1])[:, place.ravel()], kind)

    def _linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        assert bias is None
        return self._matmul(x, np.asarray(weight).T.astype(x.dtype))

    def _sum(self, x: Any, *, axis: int, keepdims: bool = False) -> Any:
        terms = np.moveaxis(self._read(x), axis, 0)
        total = self._stored(self.add(lambda k: terms[k], len(terms)), dtype(x.dtype.name))
        return np.expand_dims(total, axis) if keepdims else total

    def _mul(self, a: Any, b: Any) -> Any:
        with np.errstate(over="ignore"):
            return self._stored(self._read(a) * self._read(b), dtype(np.asarray(a).dtype.name))

    def _add(self, a: Any, b: Any) -> Any:
        return self._stored(self._read(a) + self._read(b), dtype(np.asarray(a).dtype.name))

    def _cast(self, x: Any, *, dtype: DType) -> Any:
        return self._stored(self._read(x), dtype)

    def _elementwise(self, function: Callable[[Array], Array]) -> Any:
        def kernel(x: Any) -> Any:
            return self._stored(function(self._read(x)), dtype(x.dtype.name))

        return kernel

    def _read(self, x: Any) -> Array:
        kind, y = dtype(np.asarray(x).dtype.name), np.asarray(x, np.float64)
        return np.where(np.abs(y) < kind.smallest_normal, 0.0, y) if self.flush else y

    def _cut(self, x: Array, kind: DType) -> Array:
        return round_to(x, self.inputs) if self.inputs is not None and kind is float32 else x

    def _stored(self, x: Array, kind: DType) -> Any:
        with np.errstate(over="ignore"):
            y = np.where(np.isfinite(x), self.store(np.where(np.isfinite(x), x, 0.0), kind), x)
        if self.flush:
            y = np.where(np.abs(y) < kind.smallest_normal, 0.0, y)
        return cast_to(np.clip(y, -kind.largest, kind.largest) if self.saturate else y, kind)
