"""Sizes: integers, or canonical integer expressions over named symbols.

An expression is a polynomial whose atoms are symbols, floor divisions, remainders, minima and maxima. It is kept in
one canonical form, so that two sizes that are equal by arithmetic compare equal. An equality that arithmetic cannot
prove is collected as a `Check` and tested when the graph runs.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import chain, zip_longest
from keyword import iskeyword
from typing import TypeAlias

from ..errors import GraphError


@dataclass(frozen=True)
class Symbol:
    """A named size of at least 0. `maximum` bounds it; an unbacked one is known only after the op that makes it ran.

    Symbols are equal by name; a graph as a whole has to declare a name in one way.
    """

    name: str
    maximum: int | None = field(default=None, compare=False)
    unbacked: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_]\w*", self.name, re.ASCII) or iskeyword(self.name):
            raise GraphError(f"symbol name {self.name!r} is not an identifier")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Call:
    """`floordiv(a, b)`, `mod(a, b)`, `min(...)` or `max(...)` of sizes that arithmetic could not reduce further."""

    function: str
    arguments: tuple[Dim, ...]

    def __str__(self) -> str:
        if self.function in ("floordiv", "mod"):
            left, right = (str(a) if isinstance(a, int) or a.is_atom else f"({a})" for a in self.arguments)
            return f"({left} {'//' if self.function == 'floordiv' else '%'} {right})"
        return f"{self.function}({', '.join(map(str, self.arguments))})"


Atom = Symbol | Call
Monomial = tuple[Atom, ...]
_Range = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Expr:
    """A sum of integer multiples of products of atoms, in canonical order. Build it by arithmetic on `sym(...)`."""

    terms: tuple[tuple[Monomial, int], ...] = field(default=())

    @cached_property
    def _key(self) -> str:
        return str(self)

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """All symbols in order of appearance, possibly repeated."""
        atoms = [atom for monomial, _ in self.terms for atom in monomial]
        inside = ((a,) if isinstance(a, Symbol) else chain.from_iterable(map(symbols, a.arguments)) for a in atoms)
        return tuple(chain.from_iterable(inside))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def is_atom(self) -> bool:
        return len(self.terms) == 1 and len(self.terms[0][0]) == 1 and self.terms[0][1] == 1

    def __add__(self, other: Dim) -> Dim:
        return _sum([*self.terms, *_terms(other)])

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + _scaled(other, -1)

    def __rsub__(self, other: Dim) -> Dim:
        return _scaled(self, -1) + other

    def __mul__(self, other: Dim) -> Dim:
        if other == 1:
            return self
        return _sum([((*a, *b), m * n) for a, m in self.terms for b, n in _terms(other)])

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self)

    def __str__(self) -> str:
        text = ""
        for monomial, factor in self.terms:
            size = " * ".join(
                ([str(abs(factor))] if abs(factor) != 1 or not monomial else []) + list(map(str, monomial))
            )
            sign = "-" if factor < 0 else "+"
            text += f" {sign} {size}" if text else (f"-{size}" if factor < 0 else size)
        return text or "0"

    __repr__ = __str__


Dim: TypeAlias = int | Expr


_RENAME: ContextVar[Callable[[str], str] | None] = ContextVar("rename", default=None)


@contextmanager
def rename_unbacked(rename: Callable[[str], str]) -> Iterator[None]:
    """Inside this block `sym(name, unbacked=True)` makes the size `rename(name)`.

    An infer rule calls its new sizes as it likes; who runs it keeps those of one graph apart.
    """
    token = _RENAME.set(rename)
    try:
        yield
    finally:
        _RENAME.reset(token)


def sym(name: str, maximum: int | None = None, unbacked: bool = False) -> Expr:
    """The size called `name`; inside an infer rule a new unbacked one gets a name that its graph does not have yet."""
    rename = _RENAME.get()
    if unbacked and rename is not None:
        name = rename(name)
    return Expr((((Symbol(name, maximum, unbacked),), 1),))


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    return dim.terms if isinstance(dim, Expr) else (((), int(dim)),)


def _scaled(dim: Dim, factor: int) -> Dim:
    return _sum([(m, c * factor) for m, c in _terms(dim)])


def _sum(terms: Sequence[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, factor in terms:
        ordered = tuple(sorted(monomial, key=str))
        total[ordered] = total.get(ordered, 0) + factor
    kept = sorted(((m, c) for m, c in total.items() if c), key=lambda t: (-len(t[0]), tuple(map(str, t[0]))))
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return Expr(tuple(kept))


def _residue(monomial: Monomial, factor: int, divisor: int) -> int:
    """What of a coefficient stays under a division: 0 to divisor - 1 of a constant, else the one closest to 0."""
    size = abs(divisor)
    rest = factor % size
    return rest - size if monomial and 2 * rest > size else rest


def _quotient(a: Dim, b: Expr) -> Dim | None:
    """a / b where b is one term that divides every term of a, as the sizes of reshaped axes mostly are; else None."""
    if len(b.terms) != 1:
        return None
    (divisor, factor), made = b.terms[0], []
    for monomial, c in _terms(a):
        rest = list(monomial)
        for atom in divisor:
            if atom not in rest:
                return None
            rest.remove(atom)
        if c % factor:
            return None
        made.append((tuple(rest), c // factor))
    return _sum(made)


def floordiv(a: Dim, b: Dim) -> Dim:
    """a // b; multiples of a constant divisor move out of the division, and a term that divides all of a cancels."""
    if isinstance(b, int):
        if b == 0:
            raise GraphError(f"size {a} is divided by zero")
        whole = [(m, (c - _residue(m, c, b)) // b) for m, c in _terms(a)]
        rest = _sum([(m, _residue(m, c, b)) for m, c in _terms(a)])
        quotient: Dim = rest // b if isinstance(rest, int) else Expr((((Call("floordiv", (rest, b)),), 1),))
        return _sum([*whole, *_terms(quotient)])
    exact = 1 if a == b else _quotient(a, b)
    return Expr((((Call("floordiv", (a, b)),), 1),)) if exact is None else exact


def mod(a: Dim, b: Dim) -> Dim:
    """a % b, with the sign of b as in Python."""
    if isinstance(b, int):
        if b == 0:
            raise GraphError(f"size {a} is taken modulo zero")
        rest = _sum([(m, _residue(m, c, b)) for m, c in _terms(a)])
        return rest % b if isinstance(rest, int) else Expr((((Call("mod", (rest, b)),), 1),))
    return 0 if a == b or _quotient(a, b) is not None else Expr((((Call("mod", (a, b)),), 1),))


def _extreme(function: str, dims: Sequence[Dim]) -> Dim:
    """min or max, without the sizes that another one never exceeds, or is never below."""

    def wins(a: Dim, b: Dim) -> bool:
        low, high = interval(a - b, {})
        return high <= 0 if function == "min" else low >= 0

    def best(candidates: Sequence[Dim]) -> list[Dim]:
        kept: list[Dim] = []
        for candidate in sorted(candidates, key=lambda dim: (isinstance(dim, Expr), str(dim))):
            if not any(wins(other, candidate) for other in kept):
                kept = [*(other for other in kept if not wins(candidate, other)), candidate]
        return kept

    flat: list[Dim] = []
    for dim in best(dims):
        atom = dim.terms[0][0][0] if isinstance(dim, Expr) and dim.is_atom else None
        flat.extend(atom.arguments if isinstance(atom, Call) and atom.function == function else (dim,))
    kept = best(flat)
    if not kept:
        raise GraphError(f"{function} needs at least one size")
    return kept[0] if len(kept) == 1 else Expr((((Call(function, tuple(sorted(kept, key=str))),), 1),))


def minimum(*dims: Dim) -> Dim:
    """The smallest of several sizes."""
    return _extreme("min", dims)


def maximum(*dims: Dim) -> Dim:
    """The largest of several sizes."""
    return _extreme("max", dims)


_FOLD: dict[str, Callable[..., int]] = {"floordiv": operator.floordiv, "mod": operator.mod, "min": min, "max": max}


def evaluate(dim: Dim, bindings: Mapping[str, int]) -> int:
    """The value of a size; GraphError if a symbol has none, or a division is by zero."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, factor in dim.terms:
        for atom in monomial:
            if isinstance(atom, Symbol):
                if atom.name not in bindings:
                    raise GraphError(
                        f"size {dim} needs a value for {atom.name!r}; given: {', '.join(bindings) or 'none'}"
                    )
                factor *= bindings[atom.name]
            else:
                try:
                    factor *= _FOLD[atom.function](*(evaluate(a, bindings) for a in atom.arguments))
                except ZeroDivisionError:
                    raise GraphError(f"size {dim} divides by {atom.arguments[1]}, which is 0") from None
        total += factor
    return total


def interval(dim: Dim, bounds: Mapping[str, int]) -> _Range:
    """A lower and an upper bound of a size, given upper bounds of symbols; integers where they are finite."""
    if isinstance(dim, int):
        return dim, dim
    ends: list[_Range] = []
    for monomial, factor in dim.terms:
        a: _Range = (factor, factor)
        for atom in monomial:
            a = _corners(lambda p, q: p * q if p and q else 0, a, _atom_interval(atom, bounds))
        ends.append(a)
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def _corners(f: Callable[[float, float], float], a: _Range, b: _Range) -> _Range:
    values = [f(p, q) for p in a for q in b]
    return min(values), max(values)


def _atom_interval(atom: Atom, bounds: Mapping[str, int]) -> _Range:
    if isinstance(atom, Symbol):
        known = [m for m in (bounds.get(atom.name), atom.maximum) if m is not None]
        return 0, min(known) if known else math.inf
    parts = [interval(a, bounds) for a in atom.arguments]
    if atom.function in ("min", "max"):
        pick = min if atom.function == "min" else max
        return pick(p[0] for p in parts), pick(p[1] for p in parts)
    (low, high), (least, most) = parts
    if least < 0 < most:
        return -math.inf, math.inf
    if most <= 0:
        low, high, least, most = -high, -low, -most, -least
    least = max(least, 1)
    if atom.function == "floordiv":
        return _corners(_floor, (low, high), (least, max(most, 1)))
    largest = max(most, 1) - 1 if low < 0 else min(high, max(most, 1) - 1)
    return (0, largest) if parts[1][1] > 0 else (-largest, 0)


def _floor(a: float, b: float) -> float:
    """a // b of ends of which some may be infinite; b is at least 1."""
    if math.isinf(b):
        return -1 if a < 0 else 0
    return a if math.isinf(a) else a // b


def upper_bound(dim: Dim, bounds: Mapping[str, int]) -> int:
    """The largest value a size can take; GraphError if a symbol in it has no declared maximum."""
    high = interval(dim, bounds)[1]
    if high == math.inf:
        free = [s.name for s in symbols(dim) if s.maximum is None and s.name not in bounds]
        raise GraphError(f"size {dim} has no upper bound; declare one for {', '.join(dict.fromkeys(free)) or 'it'}")
    return int(high)


def symbols(dim: Dim) -> tuple[Symbol, ...]:
    """All symbols in a size, in order of appearance, possibly repeated."""
    return dim.symbols if isinstance(dim, Expr) else ()


@dataclass(frozen=True)
class Check:
    """Two sizes that must be equal when the graph runs, because arithmetic could not prove it."""

    left: Dim
    right: Dim
    reason: str


_CHECKS: ContextVar[list[Check] | None] = ContextVar("checks", default=None)


@contextmanager
def collect_checks() -> Iterator[list[Check]]:
    """Collect the equalities that `require_equal` could not prove inside this block."""
    found: list[Check] = []
    token = _CHECKS.set(found)
    try:
        yield found
    finally:
        _CHECKS.reset(token)


def require_equal(a: Dim, b: Dim, reason: str) -> None:
    """Demand a == b: silent if proven, GraphError if impossible, else a run-time check for whoever collects them."""
    if a == b or (gap := _sum([*_terms(a), *_terms(_scaled(b, -1))])) == 0:
        return
    low, high = interval(gap, {})
    if isinstance(gap, int) or low > 0 or high < 0:
        raise GraphError(f"{reason}: {a} is not {b}")
    checks = _CHECKS.get()
    if checks is None:
        raise GraphError(f"{reason}: cannot prove that {a} equals {b}")
    checks.append(Check(a, b, reason))


def broadcast(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The common shape of several shapes by numpy's rule; sizes that are not 1 must be equal."""
    result: list[Dim] = []
    for column in zip_longest(*(tuple(shape)[::-1] for shape in shapes), fillvalue=1):
        sizes = [d for d in column if d != 1]
        for other in sizes[1:]:
            require_equal(sizes[0], other, f"shapes {', '.join(map(str, map(list, shapes)))} do not broadcast")
        result.append(sizes[0] if sizes else 1)
    return tuple(result[::-1])


def product(dims: Sequence[Dim]) -> Dim:
    """The number of elements of a shape."""
    one: Dim = 1
    return reduce(lambda total, dim: total * dim, dims, one)
