"""Whether sampled tokens are those of a correct kernel, given the uniform numbers that it drew them with.

Nothing here is statistical. A sampler keeps a run of the most likely tokens and takes the one in whose share of the
running sum of their probabilities the given number lies. A token is admissible if it owns the number within the error
of the running sum, for some run that the errors of the probabilities admit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .bounded import Array, Bounded
from .selection import Indices, Mask, admits_top_k


def admits_sample(
    logits: Bounded,
    uniform: NDArray[np.floating[Any]],
    token: Indices,
    top_p: ArrayLike = 1.0,
    *,
    temperature: ArrayLike = 1.0,
    top_k: ArrayLike = 0,
    min_p: ArrayLike = 0.0,
) -> Mask:
    """Rows of `logits` [rows, n] for which `token` int [rows] is what `top_k_top_p_sample` takes at `uniform` [rows].

    The others are numbers or [rows]. A token of logit -inf never is admissible, ties go to the lower index, and a
    temperature of 0 takes the largest logit.
    """
    rows, n = logits.shape
    valid = (token >= 0) & (token < n)
    token = np.where(valid, token, 0)
    warm, limit = _column(temperature, rows), _column(top_k, rows)
    scaled: Any = logits / logits.wrap(np.where(warm > 0, warm, 1.0))
    first, last = _ranks(scaled, logits, token)
    order = np.argsort(-scaled.v, axis=-1, kind="stable")
    count = np.where((limit <= 0) | (limit > n), n, limit).astype(int)
    rank = np.arange(n)
    ordered: Any = np.where(rank < count, np.take_along_axis(scaled, order, -1), -np.inf)
    z: Any = np.exp(ordered - ordered[:, :1])
    p: Any = z / np.sum(z, axis=-1, keepdims=True)
    sums: Any = np.concatenate([np.zeros((rows, 1)), np.cumsum(p, axis=-1)], axis=-1)
    ends = _ends(p, count, _column(top_p, rows), _column(min_p, rows))
    # a run ends behind rank m, and the token stands at some rank from `first` to `last` of it
    total = sums[:, 1:] * np.asarray(uniform, np.float64)[:, None]
    low = np.take_along_axis(sums.v - sums.e, first, -1)
    high = np.take_along_axis(sums.v + sums.e, np.minimum(last, rank) + 1, -1)
    owned = (first <= rank) & (low <= total.v + total.e) & (total.v - total.e <= high)
    drawn = np.any(ends & owned, axis=-1) & (np.take_along_axis(scaled.v, token[:, None], -1)[:, 0] > -np.inf)
    return np.asarray(valid & np.where(warm[:, 0] > 0, drawn, admits_top_k(logits, token[:, None])))


def _column(x: ArrayLike, rows: int) -> Array:
    return np.broadcast_to(np.asarray(x, np.float64), (rows,))[:, None]


def _ranks(scaled: Bounded, logits: Bounded, token: Indices) -> tuple[NDArray[Any], NDArray[Any]]:
    """How many tokens stand certainly, and how many possibly, before `token`; both are [rows, 1]."""
    at, index = token[:, None], np.arange(logits.shape[-1])
    value, error = (np.take_along_axis(part, at, -1) for part in (scaled.v, scaled.e))
    same = (logits.v == np.take_along_axis(logits.v, at, -1)) & (logits.e == 0)
    certain = np.where(same, index < at, scaled.v - scaled.e > value + error)
    possible = np.where(same, index < at, scaled.v + scaled.e >= value - error)
    return certain.sum(-1, keepdims=True), possible.sum(-1, keepdims=True)


def _ends(p: Bounded, count: NDArray[Any], top_p: Array, min_p: Array) -> Mask:
    """Whether the run of kept tokens may end with each rank, for probabilities in descending order [rows, n]."""
    rank = np.arange(p.shape[-1])
    c: Any = np.cumsum(p, axis=-1)
    before: Any = c - p
    least: Any = p[:, :1] * min_p
    kept = (before.v - before.e < top_p) & (p.v + p.e >= least.v - least.e) | (rank == 0)
    dropped = (before.v + before.e >= top_p) | (p.v - p.e < least.v + least.e) | (rank >= count)
    behind = np.concatenate([dropped[:, 1:], np.ones((dropped.shape[0], 1), bool)], axis=-1)
    return np.asarray(kept & behind & (rank < count))


def admits_rejection(
    draft_ids: Indices,
    draft_probs: Bounded,
    target_probs: Bounded,
    uniform: Bounded,
    ids: Indices,
    accepted: Indices,
) -> Mask:
    """Rows for which `ids` [rows, drafts + 1] and `accepted` [rows] are results of `rejection_sample`."""
    rows, drafts, size = draft_probs.shape
    place = np.clip(accepted, 0, drafts).astype(np.int64)
    real, rank = draft_ids >= 0, np.arange(drafts + 1)
    stays, fails = _verdicts(draft_ids, draft_probs, target_probs, uniform)
    ended = np.concatenate([fails | ~real, np.ones((rows, 1), bool)], axis=1)
    ok = (accepted == place) & np.take_along_axis(ended, place[:, None], 1)[:, 0]
    ok &= np.all((stays & real) | (rank[:drafts] >= place[:, None]), axis=1)
    given = np.concatenate([draft_ids, np.full((rows, 1), -1)], axis=1)
    ok &= np.all(np.where(rank < place[:, None], ids == given, (ids == -1) | (rank == place[:, None])), axis=1)
    token = np.take_along_axis(ids, place[:, None], 1)
    valid = (token >= 0) & (token < size)
    spent: Any = np.where(real[..., None], draft_probs, 0.0)
    spent = np.concatenate([spent, np.zeros((rows, 1, size))], axis=1)
    target, rest = _rest(target_probs, spent, place[:, None, None])
    nothing = np.all(rest.v - rest.e <= 0, axis=-1)
    owned = _owns(rest, uniform[:, drafts], np.where(valid, token, 0))
    owned |= nothing & _owns(target, uniform[:, drafts], np.where(valid, token, 0))
    return np.asarray(ok & valid[:, 0] & owned)


def _verdicts(draft_ids: Indices, draft_probs: Any, target_probs: Any, uniform: Any) -> tuple[Mask, Mask]:
    """Which drafts [rows, drafts] may stay, and which may not stay."""
    drafts, index = draft_ids.shape[1], np.maximum(draft_ids, 0)[..., None].astype(np.int64)
    drafted: Any = np.take_along_axis(draft_probs, index, -1)[..., 0]
    wanted: Any = np.take_along_axis(target_probs[:, :drafts], index, -1)[..., 0]
    limit: Any = uniform[:, :drafts] * drafted
    error = np.where(limit.v == 0, drafted.e, limit.e)  # nothing is lost of a product with zero
    least, most = limit.v - error, limit.v + error
    return least < wanted.v + wanted.e, most >= wanted.v - wanted.e


def _rest(target_probs: Any, spent: Any, place: Indices) -> tuple[Any, Any]:
    """The target of a place of each row, and how far it lies above what is spent there, whose sign is certain."""
    target: Any = np.take_along_axis(target_probs, place, 1)[:, 0]
    taken: Any = np.take_along_axis(spent, place, 1)[:, 0]
    rest: Any = np.maximum(target - taken, 0.0)
    return target, target.like(rest.v, np.where(rest.v == 0, target.e + taken.e, rest.e))


def _owns(weights: Any, uniform: Any, token: Indices) -> Mask:
    """Whether `token` [rows, 1] owns the number `uniform` [rows] times the total of `weights` [rows, n]."""
    c: Any = np.concatenate([np.zeros((weights.shape[0], 1)), np.cumsum(weights, axis=-1)], axis=-1)
    limit: Any = c[:, -1] * uniform
    low = np.take_along_axis(c.v - c.e, token, -1)[:, 0]
    high = np.take_along_axis(c.v + c.e, token + 1, -1)[:, 0]
    possible = np.take_along_axis(weights.v + weights.e, token, -1)[:, 0] > 0
    return np.asarray(possible & (low <= limit.v + limit.e) & (limit.v - limit.e <= high))
