"""Limits, verdicts and their reports: rounding to every storage format, ties, overflow, and useless bounds."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xinheng.conformance.bounds import Bounded, Rules, admits, check, limits
from xinheng.conformance.call import results
from xinheng.conformance.cases import find
from xinheng.conformance.judge import judge
from xinheng.core.errors import GraphError
from xinheng.core.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    int32,
    round_to,
)
from xinheng.core.ir.numeric import store
from xinheng.core.ops import OPSET

FORMATS = (float32, float16, bfloat16)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.floats(-1e39, 1e39),
    st.floats(0, 1e-2),
    st.sampled_from(FORMATS),
    st.floats(-1, 1),
    st.sampled_from([False, True]),
)
def test_whatever_a_correct_kernel_rounds_is_within(
    v: float, relative: float, dtype: DType, at: float, flush: bool
) -> None:
    b = Bounded(v, relative * abs(v), Rules(flush=flush))
    lo, hi = limits(b, dtype)
    assert lo <= hi
    assert admits(b, round_to(v + at * float(b.e), dtype, flush=flush), dtype)
    with np.errstate(over="ignore"):
        above, below = (
            np.nextafter(end.astype(dtype.numpy), dtype.numpy.type(to)) for end, to in ((hi, np.inf), (lo, -np.inf))
        )
    assert np.isinf(hi) or not admits(b, float(above), dtype)
    assert np.isinf(lo) or not admits(b, float(below), dtype)


def test_one_rounding_to_bfloat16_not_two() -> None:
    just_above_a_tie = Bounded([1 + 2.0**-8 + 2.0**-40])
    assert admits(just_above_a_tie, np.array([1 + 2.0**-7], ml_dtypes.bfloat16), bfloat16).all()
    assert not admits(just_above_a_tie, np.array([1], ml_dtypes.bfloat16), bfloat16).any()


def test_both_neighbours_of_a_tie_pass_once_there_is_an_error() -> None:
    tie = 1 + 2.0**-8
    for e, upper in ((0.0, False), (1e-9, True)):
        good = admits(Bounded([tie, tie], e), np.array([1.0, 1 + 2.0**-7]), bfloat16)
        assert good.tolist() == [True, upper]


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_overflow_is_admitted_where_it_may_happen_only(dtype: DType) -> None:
    half_ulp = 2.0 ** (dtype.emax - dtype.precision)
    edge = dtype.largest + half_ulp
    values = np.array([0.9 * dtype.largest, edge - 0.3 * half_ulp, edge + 0.3 * half_ulp, 2 * dtype.largest])
    b = Bounded(values, 0.5 * half_ulp)
    assert admits(b, np.full(4, np.inf), dtype).tolist() == [False, True, True, True]
    assert admits(b, np.full(4, dtype.largest), dtype).tolist() == [False, True, True, False]
    assert not admits(b, np.full(4, -np.inf), dtype).any()
    assert not admits(b, np.full(4, np.nan), dtype).any()


def test_subnormals_keep_their_grid() -> None:
    step = 2.0**-24
    b = Bounded([3 * step, 3.4 * step])
    assert admits(b, [3 * step, 3 * step], float16).all()
    assert not admits(b, [2 * step, 4 * step], float16).any()


def test_overflow_means_anything_without_an_infinity() -> None:
    b = Bounded([447.0, 1000.0])
    assert limits(b, float8_e5m2)[1].tolist() == [448, 1024]
    for value, good in ((448.0, [True, True]), (np.nan, [False, True])):
        assert admits(b, np.full(2, value), float8_e4m3fn).tolist() == good
    assert np.isinf(store(b, float8_e4m3fn).e).tolist() == [False, True]


def test_nan_only_where_nan_is_due_or_nothing_known() -> None:
    b = Bounded([np.nan, np.nan, 1.0, 1.0], [0.0, np.inf, 0.0, np.inf])
    assert admits(b, np.full(4, np.nan), float32).tolist() == [True, True, False, True]
    assert admits(b, np.full(4, 5.0), float32).tolist() == [False, True, False, True]


def test_integers_and_plain_arrays_are_compared_exactly() -> None:
    codes = np.rint(Bounded([2.4, 2.5], 0.01))
    assert admits(codes, np.array([2, 3], np.int8), int8).all()
    assert not admits(codes, np.array([3, 4], np.int8), int8).any()
    assert admits(np.array([7, 8]), np.array([7, 9], np.int32), int32).tolist() == [True, False]
    assert admits(np.array([True, False]), np.array([True, True]), bool_).tolist() == [True, False]
    assert check(np.array([0.1]), np.array([0.1], np.float16), float16).ok


def test_a_report_names_the_worst_element() -> None:
    b = Bounded(np.ones((2, 3)), 1e-6)
    out = np.ones((2, 3), np.float32)
    out[1, 2] = 1.01
    out[0, 1] = 1 + 5e-7
    verdict = check(b, out, float32)
    assert (verdict.ok, verdict.failed_count, verdict.count, verdict.worst_index) == (False, 1, 6, (1, 2))
    assert verdict.worst_ratio == pytest.approx(1 + 0.01 / 1.06e-6, rel=1e-3)
    out[1, 2] = 1
    verdict = check(b, out, float32)
    assert (verdict.ok, verdict.failed_count, verdict.worst_index) == (True, 0, (0, 1))
    assert verdict.worst_ratio == pytest.approx(5e-7 / 1.06e-6, rel=0.1)


def test_the_ratio_is_above_one_exactly_where_an_element_fails() -> None:
    rng = np.random.default_rng(0)
    for dtype in FORMATS:
        v = rng.standard_normal(400) * 10.0 ** rng.integers(-9, 5, 400)
        b = Bounded(v, np.where(rng.random(400) < 0.3, 0.0, np.abs(v) * rng.choice([1e-8, 1e-4, 1e-2], 400)))
        out = round_to(v + (b.e + dtype.unit_roundoff * np.abs(v)) * rng.uniform(-3, 3, 400), dtype)
        good = admits(b, out, dtype)
        assert 40 < good.sum() < 360
        for i in range(400):
            verdict = check(b[i : i + 1], out[i : i + 1], dtype)
            assert verdict.ok == good[i] == (verdict.worst_ratio <= 1)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_special_value_in_the_wrong_place_is_infinitely_wrong(wrong: float) -> None:
    verdict = check(Bounded([1.0, 2.0], 1e-3), np.array([1.0, wrong]), float32)
    assert (verdict.failed_count, verdict.worst_index, verdict.worst_ratio) == (1, (1,), math.inf)
    verdict = check(Bounded([1.0, math.inf]), np.array([1.0, math.inf]), float32)
    assert (verdict.ok, verdict.worst_ratio) == (True, 0.0)


def test_a_useless_bound_is_counted() -> None:
    v = np.array([1.0, -1.0, 1.0, 1e-6, 0.0, 1.0, 2.0, 1.0])
    e = np.array([0.0, 0.2, np.inf, 1e-3, 1e-3, 0.01, 0.19, 0.05])
    assert check(Bounded(v, e), v, float32).useless_share == 2 / 8
    assert check(Bounded(np.zeros(4), float32.eta), np.zeros(4), float32).useless_share == 0
    assert check(Bounded(np.zeros(4), 1e-6), np.zeros(4), float32).useless_share == 1


def test_a_bound_as_fine_as_the_format_is_useful() -> None:
    v = np.array([1e-44, 1e-60, 0.0, 0.0])
    assert check(Bounded(v, 3 * float32.eta), v, float32).useless_share == 0
    assert check(Bounded(v, 30 * float32.eta), v, float32).useless_share == 1


def test_the_sign_of_zero_counts_where_it_is_defined() -> None:
    b = Bounded([0.0, -0.0, -0.0, 1e-60, np.nan, 1.0], [0.0, 0.0, 1e-45, 1e-45, 0.0, np.inf])
    out = np.array([-0.0, 0.0, 0.0, -0.0, np.nan, -0.0])
    assert admits(b, out, float32).all()
    assert admits(b, out, float32, signed_zero=True).tolist() == [False, False, False, True, True, True]
    assert admits(b, -out, float32, signed_zero=True).all()
    assert admits(b[:3], out[:3], int32, signed_zero=True).all()
    verdict = check(b, out, float32, signed_zero=True)
    assert (verdict.ok, verdict.failed_count, verdict.worst_ratio, verdict.special) == (False, 3, math.inf, True)


def test_a_report_tells_special_values_from_numbers() -> None:
    b = Bounded([1.0, np.inf, np.nan, 2.0], 0.0)
    for out, special in (
        ([1, np.inf, np.nan, 2], False),
        ([1, -np.inf, 0, np.inf], True),
        ([1.5, 0, np.nan, 2], False),
    ):
        assert check(b, np.array(out, np.float64), float32).special == special


@pytest.mark.parametrize("id", ["eq/f32/specials", "lt/bf16/specials", "le/f16/specials", "nonzero/f32/specials"])
def test_comparisons_may_take_subnormals_for_zero_where_that_is_declared(id: str) -> None:
    call = find(f"{id}/specials/0").call
    flushed = [np.where(np.abs(x) < call.kind.smallest_normal, np.copysign(0, x), x) for x in call.values]
    kept, other = call.reference(), results(OPSET[call.op].reference(*flushed))
    made = [tuple(x.astype(bool if call.op != "nonzero" else np.int64) for x in each) for each in (kept, other)]
    assert [judge(call, each, Rules()).ok for each in made] == [True, False]
    assert [judge(call, each, Rules(flush=True)).ok for each in made] == [True, True]
    if call.op != "nonzero":
        assert not judge(call, (~made[0][0],), Rules(flush=True)).ok


def test_empty_and_scalar_outputs() -> None:
    verdict = check(Bounded(np.zeros((0, 3))), np.zeros((0, 3)), float32)
    assert (verdict.ok, verdict.count, verdict.worst_index) == (True, 0, None)
    verdict = check(Bounded(2.0), np.float32(3), float32)
    assert (verdict.ok, verdict.worst_index) == (False, ())


def test_shapes_must_agree() -> None:
    with pytest.raises(GraphError, match=r"shape \(3,\).*\(1, 3\)"):
        admits(Bounded(np.zeros((1, 3))), np.zeros(3), float32)
