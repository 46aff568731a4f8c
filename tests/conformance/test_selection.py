"""Selection and sampling: correct kernels always pass, wrong ones do not over a few hundred draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.conformance.bounds import Bounded, admits_sample, admits_top_k
from xinheng.core.ir.dtype import DType, bfloat16, round_to

from .kernels import FORMATS, softmax

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


def sample(logits: Array, order: Array, uniform: Array, top_p: float = 0.9, **bug: Any) -> Array:
    """A float32 sampler; `bug` changes a step."""
    x = np.take_along_axis(logits, order, -1).astype(np.float32)
    z = np.exp((x - x[:, :1]) / np.float32(bug.get("temperature", 1.0)))
    p = z / z.sum(-1, keepdims=True)
    p = round_to(p, bug["stored"]).astype(np.float32) if "stored" in bug else p
    c = np.cumsum(p, -1, dtype=np.float32)
    keep = (c - p < np.float32(top_p)) if not bug.get("drops_crossing") else (c <= np.float32(top_p))
    keep[:, 0] = True
    last = keep.sum(-1) - 1
    total = np.take_along_axis(c, last[:, None], -1) if not bug.get("unnormalised") else np.ones((ROWS, 1), np.float32)
    rank = (c <= uniform.astype(np.float32)[:, None] * total).sum(-1) - (1 if bug.get("one_early") else 0)
    return np.take_along_axis(order, np.clip(rank, 0, last)[:, None], -1)[:, 0]


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_correct_samples(dtype: DType, top_p: float) -> None:
    for scale in (1.0, 5.0, 0.02):
        logits, order, uniform = draw(dtype, scale)
        assert admits_sample(Bounded(logits), uniform, sample(logits, order, uniform, top_p), top_p).all()


@pytest.mark.parametrize(
    "bug",
    [{"drops_crossing": True}, {"unnormalised": True}, {"one_early": True}, {"temperature": 1.1}, {"stored": bfloat16}],
    ids=str,
)
def test_wrong_samples(bug: dict[str, Any]) -> None:
    logits, order, uniform = draw(FORMATS[0])
    assert not admits_sample(Bounded(logits), uniform, sample(logits, order, uniform, **bug), 0.9).all()


def test_other_uniform_number_and_impossible_tokens() -> None:
    logits, order, uniform = draw(FORMATS[0])
    token = sample(logits, order, uniform, 1.0)
    assert np.mean(admits_sample(Bounded(logits), np.roll(uniform, 1), token)) < 0.2
    assert not admits_sample(Bounded(logits), uniform, token + N).any()
    masked = Bounded([[0.0, 1.0, -np.inf]])
    almost_one = np.array([1 - 2.0**-24])
    assert not admits_sample(masked, almost_one, np.array([2])).any()
    assert admits_sample(masked, almost_one, np.array([0])).all()
