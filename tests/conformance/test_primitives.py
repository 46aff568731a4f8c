"""Each error rule holds for any operands, special values included: what starts within the bounds ends within them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from xinheng.conformance.bounds import Bounded, Rules, admits
from xinheng.core.ir import numeric
from xinheng.core.ir.dtype import bfloat16, float16, float32, round_to

Array = NDArray[Any]
Program = Callable[..., Any]

SPECIALS = round_to(
    np.array([0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 3.0, -2.5, 1e-3, 1e-20, -1e20, 3e19, 2e38, -3e38, 88.7, -104.0, 200.0]),
    float32,
)
SPECIALS = np.append(SPECIALS, [np.inf, -np.inf, np.nan, float32.largest, -float32.largest, 2.0**-126, 3 * 2.0**-149])
ONE: dict[str, Program] = {
    f.__name__: f
    for f in (
        *(np.negative, np.absolute, np.square, np.sqrt, np.exp, np.exp2, np.log, np.log2, np.log1p, np.expm1, np.tanh),
        *(np.sin, np.cos, np.rint, np.floor, np.ceil, np.trunc, np.sign, np.reciprocal, np.positive, np.fabs),
        *(numeric.erf, numeric.sigmoid, numeric.rsqrt),
    )
}
ONE |= {"cube": lambda x: x**3, "root": lambda x: x**0.5, "inverse": lambda x: x**-1.0, "2**x": lambda x: 2.0**x}
ONE |= {f"store {f}": lambda x, f=f: numeric.store(x, f) for f in (float16, bfloat16)}
ONE |= {"store anyhow": lambda x: numeric.store(x, bfloat16, known=False), "clip": lambda x: np.clip(x, -1.0, 100)}
ONE |= {"softplus": lambda x: np.log(1 + np.exp(x)), "huge": lambda x: x * 3e38 / 3e38}
ONE |= {
    "rounded half": lambda x: np.rint(np.clip(x, -1e6, 1e6)) * 3 + np.floor(np.clip(x / 2, -1e6, 1e6)),
    "through fp16": lambda x: numeric.store(x, float16) - x,
}
TWO: dict[str, Program] = {f.__name__: f for f in (np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum)}
TWO |= {
    "power": lambda a, b: np.abs(a) ** np.clip(b, -4.0, 4.0),
    "midpoint": lambda a, b: (a + b) * 0.5,
    "ratio": lambda a, b: a / (a + b),
    "larger exp": lambda a, b: np.maximum(np.exp(a), b) - b,
    "chosen": lambda a, b: np.where(np.arange(a.size) % 3 == 0, a * b, -np.inf) - b,
    "quotient of products": lambda a, b: (a * b) / (b * a),
}


def operand_of(v: Any, e: Any = 0.0, rules: Rules | None = None) -> Any:
    """Untyped, as references take it."""
    return Bounded(v, e, rules)


def kernel_value(rng: np.random.Generator, v: Array, e: Array) -> Array:
    """Some float32 within e of v, and anything at all where e is infinite."""
    with np.errstate(all="ignore"):
        x = v + e * rng.choice([-1.0, 1.0, 0.0, rng.uniform(-1, 1)], v.shape)
        x = round_to(x, float32)
        x = np.where(np.abs(x - v) <= e, x, round_to(v, float32))
    x = np.where(np.isfinite(v) & (e > 0), x, v)
    return np.where(np.isinf(e), rng.choice(SPECIALS, v.shape), x).astype(np.float32)


def errors(rng: np.random.Generator, v: Array) -> Array:
    relative, absolute = rng.choice([1e-7, 1e-3, 0.3, 1.0]) * np.abs(v), rng.choice([1e-6, 0.1, 2.0], v.shape)
    e = np.select([rng.random(v.shape) < p for p in (0.5, 0.75, 0.95)], [np.zeros(v.shape), relative, absolute], np.inf)
    return np.where(np.isfinite(v) | np.isinf(e), e, 0.0)


def expect_admitted(
    program: Program, operands: list[tuple[Array, Array]], seed: int, rules: Rules | None = None
) -> None:
    rng = np.random.default_rng(seed)
    expected: Bounded = program(*(Bounded(v, e, rules) for v, e in operands))
    with np.errstate(all="ignore"):
        given_values = [kernel_value(rng, v, e) for v, e in operands]
        out = np.asarray(program(*given_values))
    good = admits(expected, out, float32)
    if not good.all():
        i = np.flatnonzero(~good)[0]
        rows = [part.reshape(len(good), -1)[i // (good.size // len(good))].tolist() for part in sum(operands, ())]
        held = [part.reshape(len(good), -1)[i // (good.size // len(good))].tolist() for part in given_values]
        pytest.fail(f"{rows}, held {held}: v {expected.v.flat[i]}, e {expected.e.flat[i]}, out {out.flat[i]}")


@pytest.mark.parametrize("name", ONE)
def test_one_operand(name: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        v = np.concatenate([SPECIALS, round_to(rng.standard_normal(60) * 10.0 ** rng.integers(-9, 9, 60), float32)])
        expect_admitted(ONE[name], [(v, errors(rng, v))], seed)


@pytest.mark.parametrize("name", TWO)
def test_two_operands(name: str) -> None:
    a, b = (x.ravel() for x in np.meshgrid(SPECIALS, SPECIALS))
    for seed in range(10):
        rng = np.random.default_rng(seed)
        expect_admitted(TWO[name], [(a, errors(rng, a)), (b, errors(rng, b))], seed)


REDUCED: dict[str, Program] = {
    "sum": lambda x: np.sum(x, axis=-1),
    "mean": lambda x: np.mean(x, axis=-1),
    "max": lambda x: np.max(x, axis=-1),
    "min": lambda x: np.min(x, axis=-1),
    "cumsum": lambda x: np.cumsum(x, axis=-1),
    "gram": lambda x: x @ np.swapaxes(x, -1, -2),
    "softmax": lambda x: (
        np.exp(x - np.max(x, axis=-1, keepdims=True))
        / np.sum(np.exp(x - np.max(x, axis=-1, keepdims=True)), axis=-1, keepdims=True)
    ),
}


@pytest.mark.parametrize("name", REDUCED)
def test_reductions(name: str) -> None:
    """Of rows where most are tame and some hold a special value or an error."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        v = round_to(rng.standard_normal((12, 5)) * rng.choice([1.0, 1e-38, 1e38]), float32)
        v = np.where(rng.random(v.shape) < 0.08, rng.choice(SPECIALS, v.shape), v)
        e = np.where(rng.random(v.shape) < 0.3, errors(rng, v), 0.0)
        expect_admitted(REDUCED[name], [(v, np.where(np.isinf(e) & (rng.random(v.shape) < 0.8), 0.0, e))], seed)


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
PROGRAMS = {**TWO, **{name: (lambda a, b, f=f: f(a) + b) for name, f in ONE.items() if not name.startswith("store")}}


@settings(max_examples=250, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(PROGRAMS)), FINITE, FINITE, st.sampled_from([0.0, 1e-6, 1e-2]), st.integers(0, 99))
def test_any_floats(name: str, a: float, b: float, relative: float, seed: int) -> None:
    operands = [(np.array([x]), np.array([relative * abs(x)])) for x in (a, b)]
    expect_admitted(PROGRAMS[name], operands, seed)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(FINITE, min_size=1, max_size=40), st.sampled_from([None, 1, 4]), st.randoms(use_true_random=False))
def test_a_sum_in_any_order(terms: list[float], depth: int | None, random: Any) -> None:
    """Undeclared, any order; with a declared block, blocks of any order."""
    x = np.array(terms)
    shuffled = [np.float32(t) for t in terms]
    if depth is None:
        random.shuffle(shuffled)
    block = depth or len(shuffled)
    with np.errstate(all="ignore"):
        blocks = [np.add.accumulate(shuffled[i : i + block], dtype=np.float32)[-1] for i in range(0, len(x), block)]
        out = np.add.accumulate(blocks, dtype=np.float32)[-1]
    expected: Any = np.sum(operand_of(x, 0.0, Rules(depth=depth)))
    assert admits(expected, out, float32).all()


def test_flushed_subnormals_are_admitted_where_declared() -> None:
    tiny = float32.smallest_normal
    x = np.array([tiny / 2, -tiny / 4, 1.5 * tiny, 1.0])
    flushed = np.where(np.abs(x) < tiny, 0.0, x)
    for rules, expected in ((Rules(), [False, False, True, True]), (Rules(flush=True), [True] * 4)):
        assert admits(Bounded(x, 0.0, rules), flushed, float32).tolist() == expected
        assert admits(Bounded(x, 0.0, rules), x, float32).all()
    product = Bounded(np.array([2.0**-63]), 0.0, Rules(flush=True)) * 2.0**-65
    assert admits(product, np.zeros(1), float32).all()
    assert not admits(Bounded(np.array([2.0**-63])) * 2.0**-65, np.zeros(1), float32).any()
    for rules, good in ((Rules(), False), (Rules(flush=True), True)):  # 64 terms, each of which vanishes on arrival
        assert admits(np.sum(operand_of(np.full(64, 2.0**-127), 0.0, rules)), 0.0, float32) == good


# -------------------------------------------------------------------------------------------------- the rules, literal
def test_rounded_operations_follow_the_formula() -> None:
    rules, u = Rules(), Rules().unit
    a, b = operand_of([3.0], [0.01]), operand_of([-7.0], [0.02])
    for result, r, e, c in (
        (a + b, -4.0, 0.03, 1),
        (a - b, 10.0, 0.03, 1),
        (a * b, -21.0, 3 * 0.02 + 7 * 0.01 + 0.01 * 0.02, 1),
        (a / b, -3 / 7, (0.01 + 3 / 7 * 0.02) / (7 - 0.02), 2),
        (np.sqrt(a), 3**0.5, 3**0.5 - 2.99**0.5, 2),
        (numeric.rsqrt(a), 3**-0.5, 2.99**-0.5 - 3**-0.5, 4),
        (np.tanh(a), np.tanh(3), np.tanh(3) - np.tanh(2.99), 8),
        (np.exp(a), np.exp(3), np.exp(3.01) - np.exp(3), 8 + 3),
    ):
        assert result.v == pytest.approx(r, rel=1e-15)
        assert result.e == pytest.approx(e + c * u * (abs(r) + e) + rules.eta, rel=1e-9)
    moves: list[Any] = [-a, np.absolute(b), a[:], a.T, np.repeat(b, 3)]
    for move in moves:
        assert set(move.e) <= {0.01, 0.02}


def test_contractions_follow_the_formula() -> None:
    rules = Rules()
    a, b = np.array([[3.0, -1.0, 2.0]]), np.array([[1.0], [2.0], [-4.0]])
    ea, eb = np.array([[0.1, 0.0, 0.2]]), np.array([[0.0, 0.01, 0.02]]).T
    e = np.abs(a) @ eb + ea @ np.abs(b) + ea @ eb
    gamma = 2 * rules.unit / (1 - 2 * rules.unit)
    out = operand_of(a, ea) @ operand_of(b, eb)
    assert out.v == -7
    assert out.e == pytest.approx(e + (gamma + rules.unit) * (13 + e) + 6 * rules.eta, rel=1e-12)
    one = operand_of([[3.0]]) @ operand_of([[0.5]])
    assert one.e == pytest.approx(rules.unit * 1.5, rel=1e-12)
    total: Any = np.sum(operand_of(a, ea), axis=-1)
    assert total.e == pytest.approx(0.3 + gamma * (6 + 0.3), rel=1e-12)
    mean: Any = np.mean(operand_of(a, ea), axis=-1)
    assert mean.e == pytest.approx(total.e / 3 + 2 * rules.unit * (4 / 3 + total.e / 3), rel=1e-9)
    running: Any = np.cumsum(operand_of(a, ea), axis=-1)
    assert running.e[0] == pytest.approx([0.1 + gamma * 3.1, 0.1 + gamma * 4.1, total.e[0]], rel=1e-12)


def test_integers_are_exact_and_move_only_at_ties() -> None:
    codes: Any = np.rint(operand_of([2.4, 2.49, 2.5, -0.2], 0.02))
    assert codes.integer
    assert codes.v.tolist() == [2, 2, 2, 0]
    assert codes.e.tolist() == [0, 1, 1, 0]
    dots = codes * 3 + 4
    assert dots.e.tolist() == [0, 3, 3, 0]
    total: Any = np.sum(dots)
    assert (total.e, total.integer) == (6, True)
    assert not (dots * 0.5).integer
    assert (dots * 0.5).e[0] > 0


def test_constants_carry_their_representation_error() -> None:
    exact, lossy = operand_of([1.0]) * 0.5, operand_of([1.0]) * 0.1
    assert exact.e < 1.01 * Rules().unit
    tenth = abs(0.1 - float(np.float32(0.1)))
    assert lossy.e == pytest.approx(tenth + Rules().unit * (0.1 + tenth), rel=1e-6)
    assert (operand_of([1.0]) * np.array([0.1])).e == lossy.e
    assert (operand_of([0.0]) + (2**24 + 1)).e >= 1
    assert (Bounded([0.0], integer=True) + (2**24 + 1)).e == 0


def test_waves_stay_within_their_range() -> None:
    """The error of an angle counts in full while it is small, and never for more than the whole range."""
    y: Any = np.sin(operand_of([1.0, 1.0], [1e-3, 5.0]))
    grade = 8 * Rules().unit + Rules().eta
    assert y.e == pytest.approx([1e-3 + grade, 2 + grade], rel=1e-9)


def test_store_is_exact_except_near_a_tie() -> None:
    ulp = 2.0**-7
    x = operand_of([1.0, 1 + ulp / 2, 1 + ulp / 2 + 2.0**-40, 1.2], [1e-5, 0.0, 0.0, 1e-5])
    y = numeric.store(x, bfloat16)
    assert y.v.tolist() == [1.0, 1.0, 1 + ulp, float(round_to(1.2, bfloat16))]
    assert y.e.tolist() == [0.0, 0.0, 0.0, 0.0]
    near = numeric.store(operand_of([1 + ulp / 2], [1e-6]), bfloat16)
    assert near.e == ulp
    bounded = numeric.store(operand_of([1.0], [0.0], Rules(evaluate=False)), bfloat16)
    assert bounded.e == pytest.approx(2.0**-8, rel=1e-6)
    assert np.isinf(numeric.store(operand_of([65519.9], [1.0]), float16).e)
    anyhow = numeric.store(operand_of([65000.0, 65519.9, np.inf]), float16, known=False)
    assert np.isinf(anyhow.e).tolist() == [False, True, False]
    sure = numeric.store(operand_of([7e4], [1.0]), float16)
    assert (sure.v, sure.e) == (np.inf, 0)


def test_shift_drops_a_known_error_only() -> None:
    assert numeric.shift(operand_of([1.0, 2.0], [0.5, np.inf])).e.tolist() == [0, np.inf]


def test_masked_infinities_do_not_spread() -> None:
    s = np.where([True, False], operand_of([1.0, 2.0], 1e-3), -np.inf)
    p: Any = np.exp(s - np.max(s))
    assert p.v[1] == 0
    assert np.isfinite(p.e).all()
    out = p @ operand_of([[5.0], [7.0]], 0.1)
    assert np.isfinite(out.e).all()


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (lambda: operand_of([np.inf]) - operand_of([1.0], 0.5), np.inf),
        (lambda: operand_of([np.inf]) * operand_of([2.0], 0.5), np.inf),
        (lambda: operand_of([np.inf]) - np.inf, np.nan),
        (lambda: operand_of([0.0]) * np.inf, np.nan),
        (lambda: operand_of([1.0], 0.5) / 0.0, np.inf),
        (lambda: operand_of([1.0]) / np.inf, 0.0),
        (lambda: np.exp(operand_of([2000.0], 1.0)), np.inf),
        (lambda: np.log(operand_of([0.0])), -np.inf),
        (lambda: np.sqrt(operand_of([-1.0], 0.5)), np.nan),
        (lambda: np.sum(operand_of([np.inf, 1.0], [0.0, 0.5])), np.inf),
        (lambda: operand_of([[np.inf, 1.0]]) @ operand_of([[2.0], [3.0]], 0.5), np.inf),
        (lambda: np.maximum(operand_of([np.nan]), operand_of([1.0], 0.5)), np.nan),
    ],
)
def test_specials_are_certain(result: Callable[[], Bounded], value: float) -> None:
    """A device must show them in the right place, with the right sign."""
    b = result()
    assert admits(b, np.full(b.shape, value), float32).all()
    wrong = [w for w in (np.inf, -np.inf, np.nan, 1.0) if not np.array_equal(w, value, equal_nan=True)]
    assert not any(admits(b, np.full(b.shape, w), float32).any() for w in wrong)


@pytest.mark.parametrize(
    "result",
    [
        lambda: operand_of([1.0]) / operand_of([0.0], 0.1),
        lambda: operand_of([np.inf]) * operand_of([0.0], 0.1),
        lambda: operand_of([0.0], 0.1) / 0.0,
        lambda: np.sqrt(operand_of([0.0], 0.1)),
        lambda: np.log(operand_of([0.01], 0.1)),
        lambda: numeric.rsqrt(operand_of([0.0], 1e-9)),
        lambda: operand_of([3e38]) * 3.0 - operand_of([3e38]) * 3.0,
        lambda: np.sum(operand_of([3e38, 3e38, -3e38, -3e38])),
        lambda: operand_of([[3e38, 3e38]]) @ operand_of([[2.0], [-2.0]]),
        lambda: operand_of([[0.0, 1.0]], [[0.1, 0.0]]) @ operand_of([[np.inf], [1.0]]),
        lambda: np.sum(operand_of([1e5, -1e5], 0.0, Rules(partial=float16, chunk=1))),
        lambda: np.tanh(operand_of([0.0], np.inf)),
    ],
)
def test_nothing_is_promised_where_nothing_is_known(result: Callable[[], Bounded]) -> None:
    assert np.isinf(result().e).all()


def test_saturation_is_no_infinity() -> None:
    """In the compute format too: overflow is decided where a value is stored, not before."""
    doubled = operand_of([3e38]) * 2.0
    assert admits(doubled, [np.inf], float32).all()
    assert not admits(doubled, [float32.largest], float32).any()
    close = operand_of([float32.largest], 1e30) + 0.0
    assert admits(close, [np.inf], float32).all()
    assert admits(close, [float32.largest], float32).all()


def test_monotone_widths_grow_with_the_error() -> None:
    widths = [float(np.exp(operand_of(1.0, e)).e) for e in (0.0, 1e-6, 1e-3, 0.1)]
    assert all(a < b for a, b in pairwise(widths))
