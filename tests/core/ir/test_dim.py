"""Sizes are canonical, mean what Python's arithmetic means, and stay within their interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xinheng.core.errors import GraphError
from xinheng.core.ir.dim import (
    Check,
    Dim,
    Expr,
    Symbol,
    broadcast,
    collect_checks,
    evaluate,
    floordiv,
    interval,
    maximum,
    minimum,
    mod,
    product,
    require_equal,
    sym,
    symbols,
    upper_bound,
)
from xinheng.core.ir.dim_text import parse_dim

Env = Mapping[str, int]
Pair = tuple[Dim, Callable[[Env], int]]
"""A size, and the same by Python's integers."""

MAXIMA = {"a": 9, "b": 6, "c": 7}
ATOMS: list[Pair] = [(sym("a"), lambda e: e["a"]), (sym("b"), lambda e: e["b"]), (sym("c", 7), lambda e: e["c"])]


def combined(function: Any, plain: Any, a: Pair, b: Pair) -> Pair:
    return function(a[0], b[0]), lambda e: plain(a[1](e), b[1](e))


def constant(value: int) -> Pair:
    return value, lambda e: value


def expressions(leaves: int = 7) -> st.SearchStrategy[Pair]:
    """Random sizes; divisors are constants other than zero, of both signs, or a symbol plus one."""
    atoms = st.one_of(st.sampled_from(ATOMS), st.integers(-6, 20).map(constant))
    divisors = st.one_of(
        st.integers(-7, 9).filter(bool).map(constant),
        st.sampled_from(ATOMS).map(lambda p: (p[0] + 1, lambda e: p[1](e) + 1)),
    )

    def extend(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
        plain = [
            st.builds(combined, st.just(f), st.just(g), inner, inner)
            for f, g in (
                (lambda x, y: x + y, lambda x, y: x + y),
                (lambda x, y: x - y, lambda x, y: x - y),
                (minimum, min),
                (maximum, max),
            )
        ]
        scaled = st.builds(combined, st.just(lambda x, y: x * y), st.just(lambda x, y: x * y), inner, atoms)
        divided = [
            st.builds(combined, st.just(f), st.just(g), inner, divisors)
            for f, g in ((floordiv, lambda x, y: x // y), (mod, lambda x, y: x % y))
        ]
        return st.one_of(*plain, scaled, *divided)

    return st.recursive(atoms, extend, max_leaves=leaves)


ENVS = st.fixed_dictionaries({name: st.integers(0, most) for name, most in MAXIMA.items()})


@settings(max_examples=400, deadline=None)
@given(expressions(), ENVS)
def test_value_text_and_interval(pair: Pair, env: Env) -> None:
    dim, plain = pair
    value = plain(env)
    assert evaluate(dim, env) == value
    low, high = interval(dim, MAXIMA)
    assert low <= value <= high
    low, high = interval(dim, {})
    assert low <= value <= high
    assert parse_dim(str(dim)) == dim
    assert str(parse_dim(str(dim))) == str(dim)
    assert isinstance(dim, int) or any(True for _ in symbols(dim))


@settings(max_examples=200, deadline=None)
@given(expressions(4), expressions(4), expressions(4), st.integers(-7, 9).filter(bool))
def test_identities_are_syntactic(p: Pair, q: Pair, r: Pair, k: int) -> None:
    a, b, c = p[0], q[0], r[0]
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a * b == b * a
    assert a * (b + c) == a * b + a * c
    assert a - a == 0
    assert a - (b - c) == a - b + c
    assert -(a - b) == b - a
    assert floordiv(a + k * b, k) == floordiv(a, k) + b
    assert mod(a + k * b, k) == mod(a, k)
    assert mod(k * a, k) == 0
    assert minimum(a, b) == minimum(b, a)
    assert maximum(a, a) == a
    assert minimum(a, a + 3) == a
    assert maximum(a - 2, a, a - 5) == a
    assert floordiv(a, 1) == a
    assert hash(a + b) == hash(b + a)


LINEAR = st.builds(lambda i, j, k: sym("a") * i + sym("b") * j + k, *(st.integers(-3, 3) for _ in range(3)))


@given(LINEAR, LINEAR, LINEAR)
def test_extremes_are_associative(a: Dim, b: Dim, c: Dim) -> None:
    for extreme in (minimum, maximum):
        assert extreme(a, extreme(b, c)) == extreme(extreme(a, b), c) == extreme(c, a, b)


def test_constant_results_are_integers() -> None:
    n = sym("n")
    for dim, value in ((n - n, 0), (n * 0, 0), ((2 * n + 3) - 2 * n, 3), (n // n, 1), (n % n, 0), (8 * n % 4, 0)):
        assert type(dim) is int
        assert dim == value


def test_extremes_use_what_is_known() -> None:
    n, m = sym("n"), sym("m", 16)
    assert maximum(n, 0) == n
    assert minimum(n, 0) == 0
    assert maximum(m, 16) == 16
    assert minimum(m, 20) == m
    assert minimum(m, 4) != 4
    assert maximum(minimum(4, n) - minimum(0, n), 0) == minimum(4, n)


def test_ceiling_division_by_negation() -> None:
    n = sym("n", 100)
    assert interval(-(-n // 16), {}) == (0, 7)
    assert str(-(-n // 16)) == "-((-n) // 16)"


def test_text() -> None:
    n, m = sym("n"), sym("m")
    assert str(3 - 2 * n + n * m) == "m * n - 2 * n + 3"
    assert str((n + 15) // 16) == "((n + 15) // 16)"
    assert str(minimum(n, m + 1, 4)) == "min(4, m + 1, n)"
    assert str(n % 4 * 2) == "2 * (n % 4)"
    assert str(-(n // m)) == "-(n // m)"
    assert str(5 % n) == "(5 % n)"
    assert str(5 // n) == "(5 // n)"
    assert repr(n + 1) == "n + 1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n +", "not an expression"),
        ("n / 2", "something other than"),
        ("n ** 2", "something other than"),
        ("f(n)", "something other than"),
        ("1.5", "something other than"),
        ("True", "something other than"),
        ("min(n, key=m)", "something other than"),
        ("min()", "needs at least one size"),
        ("n // 0", "divided by zero"),
        ("n % 0", "modulo zero"),
        ("", "not an expression"),
    ],
)
def test_malformed_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        parse_dim(text)


def test_parsing_with_declared_symbols() -> None:
    n = sym("n", 7)
    assert upper_bound(parse_dim("2 * n", {"n": n}), {}) == 14
    with pytest.raises(GraphError, match="unknown size 'm'; declared: n"):
        parse_dim("m", {"n": n})


@pytest.mark.parametrize("name", ["", "1a", "a b", "a-b", "é", "if"])
def test_symbols_are_identifiers(name: str) -> None:
    with pytest.raises(GraphError, match="is not an identifier"):
        Symbol(name)


def test_symbols_are_equal_by_name() -> None:
    assert sym("n", 5) - sym("n") == 0
    assert sym("n", 5) == sym("n", unbacked=True)
    assert sym("n") != sym("m")


def test_evaluation_needs_every_symbol() -> None:
    with pytest.raises(GraphError, match="size m \\+ n needs a value for 'm'; given: n"):
        evaluate(sym("n") + sym("m"), {"n": 1})
    with pytest.raises(GraphError, match="given: none"):
        evaluate(sym("n"), {})
    with pytest.raises(GraphError, match="divides by m, which is 0"):
        evaluate(sym("n") // sym("m"), {"n": 1, "m": 0})


def test_upper_bounds() -> None:
    n, m = sym("n"), sym("m", 10)
    assert upper_bound(n * m + 1, {"n": 4}) == 41
    assert upper_bound(m, {"m": 3}) == 3
    assert upper_bound(m, {"m": 30}) == 10
    assert upper_bound(-m, {}) == 0
    assert upper_bound(minimum(n, 5), {}) == 5
    assert upper_bound(n % 8, {}) == 7
    assert upper_bound((n - 20) % 8, {"n": 3}) == 7
    assert upper_bound((m + 15) // 16, {}) == 1
    assert upper_bound(m // (n + 1), {}) == 10
    assert upper_bound(2**60 * m, {}) == 10 * 2**60
    with pytest.raises(GraphError, match="size k \\+ n has no upper bound; declare one for k, n"):
        upper_bound(n + sym("k"), {})
    assert interval(sym("n"), {}) == (0, math.inf)
    assert interval((n - 5) // 2, {"n": 9}) == (-3, 2)


def test_equality_is_proven_refused_or_left_to_run_time() -> None:
    n, m = sym("n"), sym("m", 3)
    require_equal(2 * n + 1, n + n + 1, "same")
    with pytest.raises(GraphError, match="reason: n is not n \\+ 1"):
        require_equal(n, n + 1, "reason")
    with pytest.raises(GraphError, match="reason: m is not 4"):
        require_equal(m, 4, "reason")
    with pytest.raises(GraphError, match="cannot prove that n equals m"):
        require_equal(n, m, "reason")
    with collect_checks() as found:
        require_equal(n, m, "reason")
        with collect_checks() as inner:
            require_equal(n, 5, "inner")
    assert found == [Check(n, m, "reason")]
    assert inner == [Check(n, 5, "inner")]


def test_broadcast() -> None:
    n = sym("n")
    assert broadcast((n, 1), (1, 4), (4,)) == (n, 4)
    assert broadcast((), (0, 1)) == (0, 1)
    assert broadcast((2 * n,), (n + n,)) == (2 * n,)
    with pytest.raises(GraphError, match=r"shapes \[3\], \[4\] do not broadcast"):
        broadcast((3,), (4,))
    with collect_checks() as found:
        assert broadcast((n,), (3,)) == (n,)
    assert [(c.left, c.right) for c in found] == [(n, 3)]


def test_product() -> None:
    n = sym("n")
    assert product(()) == 1
    assert product((2, n, n + 1)) == 2 * n * n + 2 * n


def test_expressions_are_values() -> None:
    assert {sym("n") + 1: "x"}[1 + sym("n")] == "x"
    assert sym("n") != 1
    assert isinstance(sym("n"), Expr)
