"""Statistics of two runs of a model: divergence, margins, losses, and the intervals of their means."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.core import divergence
from xinheng.core.divergence import Deviation, Predictions, interval, log_softmax, nmse

ROWS, VOCABULARY = 5, 60
FOLLOWING = np.array([3, 1, 4, 1, -1])


def logits(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, (ROWS, VOCABULARY)).astype(np.float32)


def exact(p: NDArray[np.float32], q: NDArray[np.float32]) -> NDArray[np.float64]:
    a, b = log_softmax(p), log_softmax(q)
    result: NDArray[np.float64] = (np.exp(a) * (a - b)).sum(axis=1)
    return result


def test_divergence_over_a_vocabulary_that_is_kept_whole() -> None:
    expected = Predictions.of(logits(0), FOLLOWING)
    assert expected.ids.shape == (ROWS, VOCABULARY)
    found = Deviation.of(expected, logits(1), FOLLOWING)
    np.testing.assert_allclose(found.kl, exact(logits(0), logits(1)), rtol=1e-12)
    same = Deviation.of(expected, logits(0), FOLLOWING)
    np.testing.assert_allclose(same.kl, 0, atol=1e-15)
    assert same.same.all()
    np.testing.assert_array_equal(same.margin, 0)


@pytest.mark.parametrize("kept", [2, 10, 59])
def test_the_rest_counts_as_one_event(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "KEPT", kept)
    expected = Predictions.of(logits(0), FOLLOWING)
    np.testing.assert_allclose(np.exp(expected.logs).sum(axis=1) + np.exp(expected.rest), 1)
    assert (np.diff(expected.logs, axis=1) <= 0).all()
    found = Deviation.of(expected, logits(1), FOLLOWING)
    whole = exact(logits(0), logits(1))
    assert (found.kl <= whole * (1 + 1e-12)).all()
    assert (found.kl > 0.2 * whole).all() or kept == 2
    order = np.argsort(-logits(0), axis=1)
    ranked = [np.take_along_axis(np.exp(log_softmax(x)), order, axis=1) for x in (logits(0), logits(1))]
    p, q = (np.concatenate([x[:, :kept], x[:, kept:].sum(axis=1, keepdims=True)], axis=1) for x in ranked)
    np.testing.assert_allclose(found.kl, (p * np.log(p / q)).sum(axis=1), rtol=1e-9)


def test_margins_and_losses() -> None:
    one, two = logits(0), logits(1)
    found = Deviation.of(Predictions.of(one, FOLLOWING), two, FOLLOWING)
    best, second = np.argsort(-one, axis=1)[:, :2].T
    rows = np.arange(ROWS)
    lead = two[rows, best] - two[rows, second] - (one[rows, best] - one[rows, second])
    np.testing.assert_allclose(found.margin, lead, rtol=1e-5)
    loss = log_softmax(one)[rows, FOLLOWING] - log_softmax(two)[rows, FOLLOWING]
    np.testing.assert_allclose(found.loss[:-1], loss[:-1])
    assert np.isnan(found.loss[-1])
    np.testing.assert_array_equal(found.same, one.argmax(axis=1) == two.argmax(axis=1))


def test_an_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = [
        found.low <= 1 <= found.high for found in (interval(rng.exponential(1, 200), 0.9, 500) for _ in range(300))
    ]
    assert 0.84 < np.mean(covered) < 0.94
    assert interval(np.ones(10)) == interval(np.ones(10))
    assert interval(np.ones(10)).low == interval(np.ones(10)).high == 1


def test_nmse() -> None:
    assert nmse(np.array([1.0, 2.0]), np.array([1.0, 1.0])) == 0.5
    assert nmse(np.array([1.0, np.nan]), np.array([1.0, 1.0])) == np.inf
    assert nmse(np.zeros(2), np.zeros(2)) == 0
