"""How far one run of a model is from another, token by token: paired observations, their means and intervals.

Distributions are compared over the `KEPT` likeliest tokens of the first run and the rest as one event. By the data
processing inequality that divergence is never above the one over the whole vocabulary; it misses only how the rest is
spread, and what is kept of a run takes megabytes instead of gigabytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

KEPT = 1024
"""Tokens of which a baseline keeps the probability, at each position."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a run says of each position.

    Attributes:
        ids: int32 [positions, kept], the likeliest tokens, best first.
        logs: float64 [positions, kept], their log-probabilities.
        rest: float64 [positions], the log-probability of all others.
        true: float64 [positions], that of the token that follows in the text; NaN at the end of a text.
    """

    ids: NDArray[np.int32]
    logs: Array
    rest: Array
    true: Array

    @classmethod
    def of(cls, logits: NDArray[np.float32], following: NDArray[np.int64]) -> Predictions:
        """From logits [positions, vocabulary] and the token that follows each position, -1 for none."""
        logs = log_softmax(logits)
        kept = min(KEPT, logs.shape[1])
        some = np.argpartition(-logs, kept - 1, axis=1)[:, :kept]
        ranked = np.lexsort((some, -np.take_along_axis(logs, some, axis=1)), axis=1)
        ids = np.take_along_axis(some, ranked, axis=1).astype(np.int32)
        return cls(ids, np.take_along_axis(logs, ids, axis=1), _rest(logs, ids), _true(logs, following))

    @property
    def margin(self) -> Array:
        """By how much the likeliest token leads, in units of logits."""
        lead: Array = self.logs[:, 0] - self.logs[:, 1]
        return lead

    def __getitem__(self, positions: slice) -> Predictions:
        return Predictions(self.ids[positions], self.logs[positions], self.rest[positions], self.true[positions])


@dataclass(frozen=True, slots=True)
class Deviation:
    """How a run differs from another at each position: float64 [positions], `same` bool.

    Attributes:
        kl: divergence of the prediction, in nats.
        same: the likeliest token is the same.
        margin: change of the lead of the likeliest token of the other run over its second.
        loss: change of -log p of the token that follows; NaN at the end of a text.
    """

    kl: Array
    same: NDArray[np.bool_]
    margin: Array
    loss: Array

    @classmethod
    def of(cls, expected: Predictions, logits: NDArray[np.float32], following: NDArray[np.int64]) -> Deviation:
        """Of logits from what is expected of the same positions."""
        logs = log_softmax(logits)
        found = np.take_along_axis(logs, expected.ids, axis=1)
        p, rest = np.exp(expected.logs), np.exp(expected.rest)
        kl = np.sum(np.where(p > 0, p * (expected.logs - found), 0.0), axis=1)
        with np.errstate(invalid="ignore"):
            kl += np.where(rest > 0, rest * (expected.rest - _rest(logs, expected.ids)), 0.0)
        return cls(
            np.maximum(kl, 0.0),
            logs.argmax(axis=1) == expected.ids[:, 0],
            found[:, 0] - found[:, 1] - expected.margin,
            expected.true - _true(logs, following),
        )

    @classmethod
    def together(cls, parts: list[Deviation]) -> Deviation:
        """Those of several texts in a row."""
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("kl", "same", "margin", "loss"))
        )


def log_softmax(logits: NDArray[np.float32]) -> Array:
    """Log-probabilities in float64 along the last axis."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def _rest(logs: Array, ids: NDArray[np.int32]) -> Array:
    """The log-probability of all tokens but `ids`, summed up rather than taken from 1, which would lose small ones."""
    others = np.exp(logs)
    np.put_along_axis(others, ids.astype(np.int64), 0.0, axis=1)
    with np.errstate(divide="ignore"):
        rest: Array = np.log(others.sum(axis=1))
    return rest


def _true(logs: Array, following: NDArray[np.int64]) -> Array:
    chosen = logs[np.arange(len(logs)), np.maximum(following, 0)]
    return np.where(following < 0, np.nan, chosen)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and between which limits it lies with the confidence that was asked for."""

    mean: float
    low: float
    high: float


def interval(values: Array, confidence: float = 0.95, resamples: int = 2000) -> Interval:
    """The mean of observations with its percentile bootstrap interval (Efron 1979); the same every time.

    Args:
        values: at least one, none NaN; the differences of pairs, where two runs are compared.
    """
    random = np.random.Generator(np.random.Philox(key=len(values)))
    batch = max(1, 2_000_000 // len(values))
    means = [
        values[random.integers(0, len(values), (min(batch, resamples - start), len(values)))].mean(axis=1)
        for start in range(0, resamples, batch)
    ]
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(np.concatenate(means), [tail, 100 - tail])
    return Interval(float(values.mean()), float(low), float(high))


def nmse(got: NDArray[Any], expected: NDArray[Any]) -> float:
    """Mean squared error as a share of the mean square of what is expected; infinite where `got` is not finite."""
    wide, wanted = got.astype(np.float64), expected.astype(np.float64)
    if not np.isfinite(wide).all():
        return float("inf")
    return float(np.sum((wide - wanted) ** 2) / max(float(np.sum(wanted**2)), 1e-300))
