"""Judging results: what is wrong is named, choices may be other ones, and what a device declares is followed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.bounds import Rules
from xinheng.conformance.call import Call
from xinheng.conformance.case import Sample
from xinheng.conformance.cases import find
from xinheng.conformance.judge import Judgement, judge
from xinheng.conformance.operands import floats, ints, normal
from xinheng.conformance.trial import Trial
from xinheng.core.hal import Arithmetic, ReferenceDevice
from xinheng.core.ir.dtype import DType, float8_e4m3fn, float16, float32
from xinheng.core.ir.numeric import store

RULES = Rules()
DEVICE = ReferenceDevice()
FLUSH, SATURATE = Rules(flush=True), Rules(saturate=True)


def call(op: str, *operands: Any, kind: DType = float32, **attributes: Any) -> Call:
    return Sample(op, "tried", operands, attributes).case(kind).call


def run(given: Call) -> tuple[Any, ...]:
    return Trial(given, DEVICE).run()


def verdict(given: Call, *made: Any, rules: Rules = RULES) -> Judgement:
    return judge(given, made, rules)


# -------------------------------------------------------------------------------------------------------- what is wrong
def _one_off(x: Any) -> Any:
    x = x.copy()
    x[1, 2] *= 1.001
    return x


@pytest.mark.parametrize(
    ("change", "defect", "words"),
    [
        (_one_off, "numbers", r"1 of 15 elements of the result are outside their bounds; at \[1, 2\] got"),
        (lambda x: np.where(np.eye(3, 5) > 0, np.nan, x).astype(np.float32), "specials", "3 of 15 elements"),
        (lambda x: x.astype(np.float64), "dtype", r"float64, not float32\[3, 5\]"),
        (lambda x: x[:2], "shape", r"shape \(2, 5\), not float32\[3, 5\]"),
        (lambda x: x.reshape(-1), "shape", r"shape \(15,\)"),
    ],
)
def test_the_defect_is_named(change: Any, defect: str, words: str) -> None:
    given = call("add", normal(3, 5), normal(3, 5))
    (good,) = run(given)
    assert verdict(given, good) == Judgement(True, program="reference", worst=verdict(given, good).worst)
    found = verdict(given, change(good))
    assert (found.ok, found.defect) == (False, defect)
    assert re.search(words, found.message)
    assert verdict(given, good, good).defect == "shape"


def test_states_are_judged() -> None:
    given = find("write_cache/bf16/holes/normal/0").call
    (pages,) = run(given)
    assert verdict(given, pages).ok
    for slot, ok in ((-1, False), (7, True)):  # slot -1 holds the last place of the cache if it is written
        k = pages.k.copy().reshape(-1, *pages.k.shape[2:])
        k[slot] = np.asarray(given.values[1][1 if slot < 0 else 0]).astype(k.dtype)
        found = verdict(given, type(pages)(k.reshape(pages.k.shape), pages.v))
        assert found.ok == ok
        assert ok or "elements of state k" in found.message


def test_a_useless_bound_proves_nothing() -> None:
    """The variance of constant rows is all error, so that nothing is known of the quotient."""
    for x, vacuous in ((floats(np.full((3, 320), 1000.3)), True), (normal(3, 320), False)):
        given = call("layer_norm", x, eps=1e-12)
        found = verdict(given, *run(given))
        assert found.ok
        assert found.vacuous == vacuous


# ------------------------------------------------------------------------------------------------------ declared modes
def test_overflow_follows_the_declaration() -> None:
    given = call("square", floats([300.0, -300.0, 2.0]), kind=float16)
    infinite, largest = (np.array([x, x, 4.0], np.float16) for x in (np.inf, float16.largest))
    assert [verdict(given, x).ok for x in (infinite, largest)] == [True, False]
    assert [verdict(given, x, rules=SATURATE).ok for x in (infinite, largest)] == [False, True]
    assert not verdict(given, -largest, rules=SATURATE).ok
    assert Rules.of(Arithmetic(depth=64, saturate=True)).saturate


def test_an_infinite_operand_may_stay_infinite() -> None:
    given = call("neg", floats([np.inf, -np.inf, 1.0]))
    kept, clipped = (np.array([-x, x, -1.0], np.float32) for x in (np.inf, float32.largest))
    assert [verdict(given, x).ok for x in (kept, clipped)] == [True, False]
    assert [verdict(given, x, rules=SATURATE).ok for x in (kept, clipped)] == [True, True]


def test_formats_without_infinity_saturate_only_where_that_is_declared() -> None:
    given = call("cast", floats([1000.0]), dtype=float8_e4m3fn)
    largest, nothing = (np.array([x], float8_e4m3fn.numpy) for x in (448.0, np.nan))
    assert all(verdict(given, x).ok for x in (largest, nothing))
    assert [verdict(given, x, rules=SATURATE).ok for x in (largest, nothing)] == [True, False]


def test_intermediates_saturate_too() -> None:
    given = call("neg", floats([7e4, 1.0]))
    (x,) = given.operands(SATURATE)
    kept = store(x, float16)
    assert kept.v.tolist() == [float16.largest, 1.0]
    assert not kept.e.any()


# ------------------------------------------------------------------------------------------------------------- choices
def test_the_largest_of_what_may_be_zero_is_any() -> None:
    tiny = float32.smallest_normal / 4
    given = call("argmax", floats([[0.0, tiny, -1.0], [0.0, 1.0, tiny]]))
    for first, second, exact, flushed in (
        (1, 1, True, True),
        (0, 1, False, True),
        (2, 1, False, False),
        (1, 0, False, False),
    ):
        made = np.array([first, second], np.int32)
        assert verdict(given, made).ok == exact
        assert verdict(given, made, rules=FLUSH).ok == flushed
    given = call("topk", floats([[0.0, tiny, -1.0]]), k=2)
    for order, values, flushed in (([1, 0], [tiny, 0], True), ([0, 1], [0, 0], True), ([0, 1], [0, -1], False)):
        both = np.array([values], np.float32), np.array([order], np.int32)
        assert verdict(given, *both, rules=FLUSH).ok == flushed
        assert verdict(given, *both).ok == (order == [1, 0])


def gated(given: Call, *experts: int) -> Judgement:
    """The verdict on a choice for one token, with the weights that belong to it."""
    logits = given.values[0][0]
    scores = 1 / (1 + np.exp(-logits[list(experts)]))
    made = np.array([scores / scores.sum()], np.float32), np.array([experts], np.int32)
    return verdict(given, *made)


def test_experts_that_nearly_tie_may_change_places() -> None:
    how: dict[str, Any] = {"k": 2, "score": "sigmoid"}
    near = call("moe_gating_topk", floats([[12.0, 12.0 + 2.0**-20, -1.0]]), **how)
    assert gated(near, 0, 1).ok
    assert gated(near, 1, 0).ok
    assert not gated(near, 2, 0).ok
    ties = call("moe_gating_topk", floats([[12.0, 12.0, -1.0]]), **how)
    assert gated(ties, 0, 1).ok
    found = gated(ties, 1, 0)
    assert not found.ok
    assert "1 of 1 choices are not admissible; row [0] has" in found.message


def test_groups_that_nearly_tie_may_change_places() -> None:
    """Sigmoids of opposite numbers add up to one, computed or not."""
    given = call(
        "moe_gating_topk", floats([[2.0, -2.0, 1.0, -1.0, 0.5, 0.25]]), k=2, score="sigmoid", groups=3, groups_kept=1
    )
    assert gated(given, 4, 5).ok
    given = call(
        "moe_gating_topk", floats([[2.0, -2.0, 1.0, -1.0, -3.0, 0.0]]), k=2, score="sigmoid", groups=3, groups_kept=1
    )
    assert gated(given, 0, 1).ok
    assert gated(given, 2, 3).ok
    assert not gated(given, 0, 2).ok
    assert not gated(given, 4, 5).ok


def test_weights_are_those_of_the_choice() -> None:
    given = find("moe_gating_topk/f32/T33xE64_sigmoid-bias/normal/0").call
    weights, experts = run(given)
    assert verdict(given, weights, experts).ok
    scores = 1 / (1 + np.exp(-given.values[0])) + given.values[1]
    biased = np.take_along_axis(scores, experts.astype(np.int64), -1)
    biased = (biased / biased.sum(-1, keepdims=True)).astype(np.float32)
    for bad in (biased, weights * np.float32(1.0001), weights[:, ::-1]):
        assert not verdict(given, bad, experts).ok
    assert not verdict(given, weights[:, ::-1], experts[:, ::-1]).ok
    assert not verdict(given, weights, experts + np.int32(64)).ok


def test_samplers_are_judged_by_their_numbers() -> None:
    given = find("top_k_top_p_sample/f32/640x41_some-all/given/0").call
    (tokens,) = run(given)
    assert verdict(given, tokens).ok
    found = verdict(given, np.roll(tokens, 1))
    assert not found.ok
    assert re.search(
        r"\d+ of 640 choices are not admissible; row \[\d+\] has \d+ where \d+ was expected", found.message
    )
    given = find("rejection_sample/int32/640x4x7_plain/given/0").call
    tokens, counts = run(given)
    assert verdict(given, tokens, counts).ok
    assert not verdict(given, tokens, np.minimum(counts + 1, 4).astype(np.int32)).ok


def test_uniform_numbers_are_those_bits() -> None:
    given = find("random_uniform/uint32/run/given/0").call
    (made,) = run(given)
    assert verdict(given, made).ok
    assert not verdict(given, np.nextafter(made, np.float32(1))).ok


# --------------------------------------------------------------------------------------------------------- collectives
THREE: dict[str, Any] = {"group": "three", "size": 3}


def ranks(x: Any) -> list[Any]:
    """What the three ranks hold, as rank 1 holds `x`."""
    return [np.roll(x, by, axis=-1) for by in (-1, 0, 1)]


def test_collectives_meet_other_ranks() -> None:
    x = ints(np.arange(12).reshape(3, 4) ** 2)
    whole = ranks(x.data.astype(np.int32))
    total: Any = sum(whole)
    tried: list[tuple[str, dict[str, Any], Any, Any]] = [
        ("all_reduce", {}, total, 3 * whole[1]),
        ("all_gather", {"axis": 0}, np.concatenate(whole), np.concatenate([whole[i] for i in (1, 0, 2)])),
        ("reduce_scatter", {"axis": 0}, total[1:2], total[:1]),
        ("all_to_all", {}, np.concatenate([w[1:2] for w in whole]), whole[1]),
    ]
    for op, attributes, right, wrong in tried:
        given = call(op, x, **attributes, **THREE)
        assert verdict(given, right.astype(np.int32)).ok, op
        assert not verdict(given, wrong.astype(np.int32)).ok, op
        assert verdict(given, *run(given)).ok, op


def test_a_bias_is_added_once() -> None:
    given = find("matmul_all_reduce/f32/of-three_float32_bias/normal/0").call
    (good,) = run(given)
    assert verdict(given, good).ok
    assert not verdict(given, (good + 2 * given.values[2]).astype(np.float32)).ok
