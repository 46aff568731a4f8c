"""An operand that carries, next to its float64 value, the largest error a correct kernel may have in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xinheng.core.errors import GraphError, XinhengError
from xinheng.core.ir.dtype import DTYPES, DType, round_to

from .rules import Rules

Array = NDArray[np.float64]

UFUNCS: dict[Any, Callable[..., Any]] = {}
FUNCTIONS: dict[Any, Callable[..., Any]] = {}
WORDS: dict[str, Callable[..., Any]] = {}


class MissingRule(XinhengError, TypeError):
    """A reference uses something of numpy for which no error rule exists."""


class Bounded(np.lib.mixins.NDArrayOperatorsMixin):
    """A float64 array `v` and a bound `e >= 0` on |what any correct kernel holds - v|, of the same shape.

    `e` is the bound with unlimited exponents: that the compute format may overflow counts once the operand is used
    (`settled`) or stored (`limits`). `e` = inf promises nothing, NaN included; a `v` that is infinite or NaN with
    `e` = 0 is certain. `integer` operands are integers, whose arithmetic among themselves is exact.
    """

    __slots__ = ("e", "integer", "rules", "v")

    def __init__(self, v: ArrayLike, e: ArrayLike = 0.0, rules: Rules | None = None, integer: bool = False) -> None:
        self.v: Array = np.asarray(v, np.float64)
        self.e: Array = np.broadcast_to(np.asarray(e, np.float64), self.v.shape)
        self.rules = rules or Rules()
        self.integer = integer

    # ------------------------------------------------------------------------------------------------ as an array
    @property
    def shape(self) -> tuple[int, ...]:
        return self.v.shape

    @property
    def ndim(self) -> int:
        return self.v.ndim

    @property
    def size(self) -> int:
        return self.v.size

    @property
    def dtype(self) -> np.dtype[np.float64]:
        return self.v.dtype

    @property
    def T(self) -> Bounded:
        return self.like(self.v.T, self.e.T)

    def reshape(self, *shape: Any) -> Bounded:
        return self.like(self.v.reshape(*shape), self.e.reshape(*shape))

    def transpose(self, *axes: Any) -> Bounded:
        return self.like(self.v.transpose(*axes), self.e.transpose(*axes))

    def swapaxes(self, a: SupportsIndex, b: SupportsIndex) -> Bounded:
        return self.like(self.v.swapaxes(a, b), self.e.swapaxes(a, b))

    def __getitem__(self, index: Any) -> Bounded:
        if any(isinstance(part, Bounded) for part in (index if isinstance(index, tuple) else (index,))):
            raise MissingRule("a bounded operand is no index; compare it, or use argmax or argsort, to get one")
        return self.like(self.v[index], self.e[index])

    def __len__(self) -> int:
        return len(self.v)

    def __iter__(self) -> Iterator[Bounded]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Bounded(v={self.v!r}, e={self.e!r})"

    def __bool__(self) -> NoReturn:
        raise MissingRule("a bounded operand has no truth value; compare it first")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise MissingRule("a bounded operand is no plain array; references use numpy functions on it, no conversions")

    # ------------------------------------------------------------------------------------------------ dispatch
    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        name = f"numpy.{ufunc.__name__}" + (f".{method}" if method != "__call__" else "")
        if method != "__call__" or ufunc not in UFUNCS:
            raise MissingRule(
                f"no error rule for {name}; rewrite the reference or add a rule, see conformance/bounds.py"
            )
        if kwargs:
            raise MissingRule(f"{name}: {', '.join(kwargs)} is not for bounded operands; references are functional")
        with np.errstate(all="ignore"):
            return UFUNCS[ufunc](*(self.wrap(a) for a in args))

    def __array_function__(self, func: Any, types: Iterable[type], args: Any, kwargs: Any) -> Any:
        if func not in FUNCTIONS:
            raise _missing(f"numpy.{func.__name__}")
        with np.errstate(all="ignore"):
            return FUNCTIONS[func](*args, **kwargs)

    def __word__(self, word: str, *args: Any, **kwargs: Any) -> Any:
        if word not in WORDS:
            raise _missing(f"the word {word!r}")
        with np.errstate(all="ignore"):
            return WORDS[word](self, *args, **kwargs)

    # ------------------------------------------------------------------------------------------------ for the rules
    def like(self, v: ArrayLike, e: ArrayLike = 0.0, integer: bool | None = None) -> Bounded:
        """An operand under the same rules; an integer one if this is and nothing else is said."""
        return Bounded(v, e, self.rules, self.integer if integer is None else integer)

    def wrap(self, x: Any) -> Bounded:
        """Anything else in an expression: a constant, which a kernel holds in its compute format."""
        if isinstance(x, Bounded):
            return x
        kind = DTYPES.get(np.asarray(x).dtype.name) if isinstance(x, (int, float, np.ndarray, np.generic)) else None
        if kind is None:
            raise MissingRule(f"{type(x).__name__} cannot be combined with a bounded operand")
        exact = not kind.is_float
        return self.like(x, 0.0 if exact else self._unheld(np.asarray(x, np.float64)), integer=exact)

    def _unheld(self, v: Array) -> Array:
        """What is lost by holding `v` in the compute format."""
        held = round_to(v, self.rules.compute)
        return np.where(held == v, 0.0, np.where(np.isnan(v), 0.0, np.abs(v - held)))

    def floated(self) -> Bounded:
        """As an operand of float arithmetic: integers are converted to the compute format."""
        if not self.integer:
            return self
        return self.like(self.v, self.e + self._unheld(self.v), integer=False)

    def settled(self) -> Bounded:
        """With `e` = inf where the compute format may have overflowed, since the kernel goes on with that infinity."""
        over = np.isfinite(self.v) & (np.abs(self.v) + self.e > self.rules.compute.largest)
        return self.like(self.v, np.where(over, np.inf, self.e)) if over.any() else self

    def rounded(self, v: Array, e: Array, units: ArrayLike = 1.0) -> Bounded:
        """Result `v`, off by `e` so far, of an operation good to `units` unit roundoffs."""
        u, eta = self.rules.unit, self.rules.eta
        e = definite(v, e)
        grown = e + np.asarray(units) * u * (np.abs(v) + e) + eta
        return self.like(v, np.where(np.isfinite(v) & np.isfinite(e), grown, e), integer=False)

    def monotone(self, f: Callable[[Any], Any], units: ArrayLike) -> Bounded:
        """Result of a monotone function, right to all orders: its ends give the spread."""
        x = self.settled().floated()
        v = np.asarray(f(x.v), np.float64)
        return self.rounded(v, spread(v, f(x.v - x.e), f(x.v + x.e), x.e), units)

    def limits(self, dtype: DType) -> tuple[Array, Array]:
        """Smallest and largest value a correct kernel may store in `dtype`; NaN where the value is a certain NaN.

        Rounding is monotone, so overflow, subnormals and ties need no rule of their own. Overflow means anything in
        formats without infinity, those whose names end in fn, fnu or fnuz.
        """
        with np.errstate(all="ignore"):
            low, high = self.v - self.e, self.v + self.e
            if not dtype.is_float:
                return np.ceil(low), np.floor(high)
            lo, hi = self.rules.kept(low, dtype), self.rules.kept(high, dtype)
            if self.rules.flush:
                lo = np.where((low > 0) & (low < dtype.smallest_normal), 0.0, lo)
                hi = np.where((high < 0) & (high > -dtype.smallest_normal), 0.0, hi)
            if self.rules.saturate:  # what is infinite for certain may stay so
                lo, hi = np.where(lo == np.inf, dtype.largest, lo), np.where(hi == -np.inf, -dtype.largest, hi)
            if dtype.name.endswith(("fn", "fnu", "fnuz")):
                over = np.isinf(lo) | np.isinf(hi)
                lo, hi = np.where(over, -np.inf, lo), np.where(over, np.inf, hi)
        return lo, hi


def _missing(what: str) -> MissingRule:
    return MissingRule(f"no error rule for {what}; rewrite the reference or add a rule, see conformance/bounds.py")


def definite(v: Array, e: Array) -> Array:
    """`e` made sound at values that are not finite: a certain one has no error, an unknown error is infinite."""
    finite = np.isfinite(v)
    if finite.all() and not np.isnan(e).any():
        return e
    e = np.where(np.isnan(e), np.where(np.isnan(v), 0.0, np.inf), e)
    return np.where(finite | np.isinf(e), e, 0.0)


def spread(v: Array, low: Array, high: Array, *incoming: Array) -> Array:
    """Error of a monotone result from its values at both ends of its operands; unknown where an `incoming` error is."""
    e = np.maximum(np.where(_same(high, v), 0.0, np.abs(high - v)), np.where(_same(low, v), 0.0, np.abs(v - low)))
    e = np.where(np.isnan(e), np.inf, e)
    for each in incoming:
        e = np.where(np.isinf(each), np.inf, e)
    return e


def _same(a: Array, b: Array) -> NDArray[np.bool_]:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def operand(array: NDArray[Any], dtype: DType, rules: Rules | None = None) -> Bounded | NDArray[Any]:
    """An input of an op as its reference takes it: `Bounded` and exact for float types, the array itself for others.

    Under `rules.flush` a subnormal input may be read as zero.

    Raises:
        GraphError: a value is not representable in `dtype`; the device would be given another input.
    """
    if not dtype.is_float:
        return np.asarray(array)
    v = np.asarray(array, np.float64)
    wrong = (round_to(v, dtype) != v) & ~np.isnan(v)
    if wrong.any():
        raise GraphError(f"input value {float(v[wrong].flat[0])!r} is not representable in {dtype}; round inputs first")
    rules = rules or Rules()
    subnormal = (np.abs(v) < dtype.smallest_normal) & (v != 0)
    return Bounded(v, np.where(subnormal, np.abs(v), 0.0) if rules.flush and subnormal.any() else 0.0, rules)


def is_exact(x: Array) -> bool:
    """No error anywhere; cheap for errors that are one broadcast number."""
    if x.size and not any(x.strides):
        return not math.isnan(x.flat[0]) and x.flat[0] == 0
    return not x.any()
