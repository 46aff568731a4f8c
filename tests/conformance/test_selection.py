"""Selection and sampling: correct kernels always pass, wrong ones do not over a few hundred draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.conformance.bounds import Bounded, admits_sample, admits_top_k
from xinheng.conformance.bounds.sampling import admits_rejection
from xinheng.conformance.bounds.selection import admits_grouped_top_k
from xinheng.core.ir.dtype import DType, bfloat16, float16, float32, round_to
from xinheng.core.ops import OPSET, rejection_sample

FORMATS = (float32, float16, bfloat16)
softmax = OPSET["softmax"].reference
ROWS, N = 300, 64
Array = NDArray[Any]


def draw(dtype: DType, scale: float = 1.0) -> tuple[Array, Array, Array]:
    """Logits with exact ties in half the rows, their stable order, and uniform numbers."""
    rng = np.random.default_rng(3)
    logits = round_to(rng.standard_normal((ROWS, N)) * scale, dtype)
    logits[: ROWS // 2, 40:60] = logits[: ROWS // 2, 20:40]
    return logits, np.argsort(-logits, -1, kind="stable"), rng.random(ROWS, dtype=np.float32).astype(np.float64)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("scale", [1.0, 5.0, 0.02])
def test_top_k(dtype: DType, scale: float) -> None:
    logits, order, _ = draw(dtype, scale)
    exact: Any = Bounded(logits)
    probabilities = softmax(logits.astype(np.float32))
    assert admits_top_k(exact, order[:, :8]).all()
    assert admits_top_k(softmax(exact), np.argsort(-probabilities, -1, kind="stable")[:, :8]).all()
    swapped = order[:, :8].copy()
    swapped[:, [6, 7]] = swapped[:, [7, 6]]
    upwards = N - 1 - np.argsort(-logits[:, ::-1], -1, kind="stable")[:, :8]
    repeated = order[:, :8].copy()
    repeated[:, 7] = repeated[:, 6]
    for bug in (swapped, np.delete(order[:, :9], 7, 1), (order[:, :8] + 1) % N, upwards, repeated):
        assert not admits_top_k(exact, bug).all()
    assert not admits_top_k(exact, order[:, :8] + N).any()
    assert not admits_top_k(exact, -1 - order[:, :1]).any()


def test_near_ties_may_go_either_way() -> None:
    scores = Bounded([[1.0, 1.001, 0.5]], 1e-3)
    for chosen, good in (([0], True), ([1], True), ([2], False), ([0, 1], True), ([1, 0], True), ([1, 2], False)):
        assert admits_top_k(scores, np.array([chosen])).tolist() == [good]
    ties = Bounded([[2.0, 2.0]])
    assert admits_top_k(ties, np.array([[0]])).all()
    assert not admits_top_k(ties, np.array([[1]])).any()


def test_nan_is_larger_than_any_number_and_keys_tie() -> None:
    scores = Bounded([[1.0, np.nan, np.inf, np.nan]])
    for chosen, good in (([1, 3, 2], True), ([3, 1, 2], False), ([1, 2, 3], False), ([2], False)):
        assert admits_top_k(scores, np.array([chosen])).tolist() == [good]
    near = Bounded([[2.0, 2.0, 2.0]], 1e-3)
    keys = np.array([[[1.0], [2.0], [1.0]]])
    for chosen, good in (([1, 0, 2], True), ([0, 1, 2], True), ([2, 0, 1], False), ([2], False)):
        assert admits_top_k(near, np.array([chosen]), keys).tolist() == [good]


def grouped(scores: Array, kept: int, chosen: list[int], error: float = 0.0) -> bool:
    """Groups of two, of which the best one counts."""
    each = Bounded(scores[None], error)
    best = Bounded(scores.reshape(-1, 2).max(-1)[None], error)
    keys = best.v[..., None]
    return bool(admits_grouped_top_k(each, best, kept, np.array([chosen]), each.v[..., None], keys)[0])


def test_groups_are_a_selection_of_their_own() -> None:
    scores = np.array([5.0, 1.0, 4.0, 3.9, 4.5, 0.0])
    for chosen, good in (([0, 4], True), ([0, 4, 1], True), ([0, 4, 2], False), ([4, 0], False), ([0, 2], False)):
        assert grouped(scores, 2, chosen) == good
    assert grouped(scores, 3, [0, 4, 2, 3])
    near = np.array([5.0, 1.0, 4.0, 3.9, 4.0005, 0.0])
    for chosen, good in (([0, 4], True), ([0, 2, 3], True), ([0, 2, 4], False), ([2, 3], False)):
        assert grouped(near, 2, chosen, 1e-3) == good
    ties = np.array([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    assert grouped(ties, 2, [0, 2])
    assert not grouped(ties, 2, [0, 4])
    assert not grouped(ties, 2, [2, 0])


def sample(logits: Array, order: Array, uniform: Array, top_p: float = 0.9, **how: Any) -> Array:
    """A float32 sampler; `how` has its parameters, or changes a step."""
    x = np.take_along_axis(logits, order, -1).astype(np.float32) / np.float32(how.get("temperature", 1.0))
    rank, top_k = np.arange(N), how.get("top_k", 0) or N
    x = np.where(rank < top_k + how.get("one_more", 0), x, np.float32(-np.inf))
    z = np.exp(x - x[:, :1])
    p = z / z.sum(-1, keepdims=True)
    p = round_to(p, how["stored"]).astype(np.float32) if "stored" in how else p
    c = np.cumsum(p, -1, dtype=np.float32)
    keep = (c - p < np.float32(top_p)) if not how.get("drops_crossing") else (c <= np.float32(top_p))
    keep &= p >= np.float32(how.get("min_p", 0.0)) * (p[:, :1] if not how.get("absolute") else np.float32(1))
    keep[:, 0] = True
    last = keep.sum(-1) - 1
    total = np.take_along_axis(c, last[:, None], -1) if not how.get("unnormalised") else np.ones((ROWS, 1), np.float32)
    rank = (c <= uniform.astype(np.float32)[:, None] * total).sum(-1) - (1 if how.get("one_early") else 0)
    return np.take_along_axis(order, np.clip(rank, 0, last)[:, None], -1)[:, 0]


PARAMETERS: list[dict[str, Any]] = [
    {},
    {"top_p": 1.0},
    {"top_p": 0.0},
    {"temperature": 0.3},
    {"temperature": 3.0, "top_p": 0.5},
    {"top_k": 1},
    {"top_k": 7, "top_p": 1.0},
    {"top_k": 7, "top_p": 0.6},
    {"min_p": 0.1, "top_p": 1.0},
    {"min_p": 2.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
]


def admitted(logits: Array, uniform: Array, token: Array, **how: Any) -> Array:
    known = {name: how[name] for name in ("temperature", "top_k", "min_p") if name in how}
    return admits_sample(Bounded(logits), uniform, token, how.get("top_p", 0.9), **known)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("how", PARAMETERS, ids=str)
def test_correct_samples(dtype: DType, how: dict[str, Any]) -> None:
    for scale in (1.0, 5.0, 0.02):
        logits, order, uniform = draw(dtype, scale)
        assert admitted(logits, uniform, sample(logits, order, uniform, **how), **how).all()


BUGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"drops_crossing": True}),
    ({}, {"unnormalised": True}),
    ({}, {"one_early": True}),
    ({}, {"temperature": 1.1}),
    ({}, {"stored": bfloat16}),
    ({}, {"top_p": 0.91}),
    ({"top_k": 7, "top_p": 1.0}, {"one_more": 1}),
    ({"top_k": 7, "top_p": 1.0}, {"one_more": -1}),
    ({"min_p": 0.1, "top_p": 1.0}, {"absolute": True}),
    ({"min_p": 0.1, "top_p": 1.0}, {"min_p": 0.0}),
    ({"temperature": 0.5}, {"temperature": 1.0}),
    ({"top_k": 7, "top_p": 0.6}, {"top_k": 0}),
]


@pytest.mark.parametrize(("how", "bug"), BUGS, ids=str)
def test_wrong_samples(how: dict[str, Any], bug: dict[str, Any]) -> None:
    logits, order, uniform = draw(FORMATS[0])
    assert not admitted(logits, uniform, sample(logits, order, uniform, **{**how, **bug}), **how).all()


def test_a_temperature_of_zero_takes_the_largest() -> None:
    logits, order, uniform = draw(FORMATS[0])
    cold = {"temperature": np.where(np.arange(ROWS) % 2, 0.0, 1.0)}
    drawn = sample(logits, order, uniform, 1.0)
    mixed = np.where(np.arange(ROWS) % 2, order[:, 0], drawn)
    assert admitted(logits, uniform, mixed, **cold, top_p=1.0).all()
    assert not admitted(logits, uniform, drawn, **cold, top_p=1.0)[1::2].all()


def test_near_ties_may_change_places() -> None:
    """Two tokens that a division makes equal: either may come first, so either may own a number of both."""
    logits = np.array([[1.0, 1.0 + 2.0**-23, -1.0]])
    for uniform in (0.2, 0.6):
        good = [
            bool(admitted(logits, np.array([uniform]), np.array([t]), temperature=3.0, top_p=1.0)) for t in range(3)
        ]
        assert good == [True, True, False]
    assert admitted(logits, np.array([0.2]), np.array([0]), temperature=3.0, top_k=1, top_p=1.0)
    exact = np.array([[1.0, 1.0, -1.0]])
    good = [bool(admitted(exact, np.array([0.2]), np.array([t]), temperature=3.0, top_p=1.0)) for t in range(3)]
    assert good == [True, False, False]


def test_other_uniform_number_and_impossible_tokens() -> None:
    logits, order, uniform = draw(FORMATS[0])
    token = sample(logits, order, uniform, 1.0)
    assert np.mean(admits_sample(Bounded(logits), np.roll(uniform, 1), token)) < 0.2
    assert not admits_sample(Bounded(logits), uniform, token + N).any()
    masked = Bounded([[0.0, 1.0, -np.inf]])
    almost_one = np.array([1 - 2.0**-24])
    assert not admits_sample(masked, almost_one, np.array([2])).any()
    assert admits_sample(masked, almost_one, np.array([0])).all()


DRAFTS, WORDS = 3, 9


def drafted() -> tuple[Array, Array, Array, Array]:
    """Draft tokens, two distributions over few words, and uniform numbers, as float32 operands."""
    rng = np.random.default_rng(5)
    draft, target = (rng.dirichlet(np.full(WORDS, 0.7), (ROWS, n)).astype(np.float32) for n in (DRAFTS, DRAFTS + 1))
    ids = np.argmax(draft * rng.random(draft.shape), axis=-1)
    ids[::5, 1:] = -1
    target[1::7, 0] = draft[1::7, 0]
    return ids, draft, target, rng.random((ROWS, DRAFTS + 1), dtype=np.float32)


def judged(ids: Array, draft: Array, target: Array, uniform: Array, made: tuple[Array, Array]) -> Array:
    return admits_rejection(ids, Bounded(draft), Bounded(target), Bounded(uniform), *made)


def test_correct_rejections() -> None:
    given = drafted()
    made = rejection_sample.reference(*given)
    assert {0, 1, 2, 3} == set(made[1].tolist()), "too tame to tell"
    assert judged(*given, made).all()


def test_wrong_rejections() -> None:
    ids, draft, target, uniform = given = drafted()
    tokens, counts = rejection_sample.reference(*given)
    at = counts[:, None]
    there = np.take_along_axis(tokens, at, 1)
    moved, behind = tokens.copy(), tokens.copy()
    np.put_along_axis(moved, at, (there + 1) % WORDS, 1)
    behind[counts < DRAFTS, -1] = 0
    changed = np.where(np.arange(DRAFTS + 1) < at, (tokens + 1) % WORDS, tokens)
    for bug in (
        rejection_sample.reference(ids, draft, target, uniform[:, ::-1]),
        rejection_sample.reference(ids, draft * np.float32(0.9), target, uniform),
        rejection_sample.reference(ids, np.zeros_like(draft), target, uniform),
        rejection_sample.reference(np.maximum(ids, 0), draft, target, uniform),
        (tokens, np.minimum(counts + 1, DRAFTS)),
        (moved, counts),
        (behind, counts),
        (changed, counts),
        (np.full_like(tokens, WORDS), counts),
        (tokens, counts - 9),
    ):
        assert not judged(*given, bug).all()


def test_the_next_token_is_never_one_that_the_draft_covers() -> None:
    draft, target = np.array([[[0.5, 0.5, 0.0]]]), np.array([[[0.25, 0.25, 0.5], [1.0, 0.0, 0.0]]])
    ids, uniform = np.array([[0]]), np.array([[0.75, 0.0]])
    good = [bool(judged(ids, draft, target, uniform, (np.array([[t, -1]]), np.array([0])))[0]) for t in range(3)]
    assert good == [False, False, True]
