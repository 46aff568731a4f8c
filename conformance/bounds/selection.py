"""Whether what an op selects is what a correct kernel selects, given that the scores it looks at carry an error."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bounded import Array, Bounded

Indices = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]


def admits_top_k(scores: Bounded, chosen: Indices, keys: NDArray[Any] | None = None) -> Mask:
    """Rows of `scores` [..., n] for which `chosen` int [..., k], best first, is admissible; the shape is [...].

    Nothing left out, or placed later, may be certainly larger; exact ties go to the lower index. Scores that are exact
    tie where they are equal, and any two where their `keys` [..., n, m] are, which is what they were computed from. NaN
    is larger than any number. Indices must be in range and differ. Argmax is the case k = 1.
    """
    value, error, keys = _ordered(scores), scores.e, np.zeros((*scores.shape, 0)) if keys is None else keys
    n, k = scores.shape[-1], chosen.shape[-1]
    valid = np.all((chosen >= 0) & (chosen < n), axis=-1)
    chosen = np.where(valid[..., None], chosen, 0).astype(np.int64)
    remaining = np.ones(scores.shape, bool)
    np.put_along_axis(remaining, chosen, False, -1)
    ok = valid & (n - remaining.sum(-1) == k)
    lowest, exact = value - error, error == 0
    for j in reversed(range(k)):
        index = chosen[..., j : j + 1]
        here, off = (np.take_along_axis(part, index, -1) for part in (value, error))
        same = (value == here) & exact & (off == 0)
        if keys.shape[-1]:
            same |= np.all(keys == np.take_along_axis(keys, index[..., None], -2), axis=-1)
        larger = (lowest > here + off) & ~same
        ok &= ~np.any(remaining & (larger | (same & (np.arange(n) < index))), axis=-1)
        np.put_along_axis(remaining, index, True, -1)
    return np.asarray(ok)


def _ordered(scores: Bounded) -> Array:
    """Values whose order is that of the scores with NaN above infinity."""
    if np.isfinite(scores.v).all():
        return scores.v
    return np.where(np.isnan(scores.v), np.inf, np.minimum(scores.v, np.finfo(np.float64).max))


def admits_grouped_top_k(
    scores: Bounded, values: Bounded, kept: int, chosen: Indices, keys: NDArray[Any], group_keys: NDArray[Any]
) -> Mask:
    """As `admits_top_k`, of those scores only that lie in the `kept` groups of largest `values` [rows, groups].

    Groups are runs of equal length of `scores` [rows, n]. Which of them stay is a selection of its own, and any
    admissible outcome of it will do.
    """
    ok = np.zeros(chosen.shape[0], bool)
    for row, found in enumerate(_kept_groups(values, kept, group_keys)):
        one = slice(row, row + 1)
        for stays in found:
            inside = np.repeat(np.isin(np.arange(values.shape[-1]), stays), scores.shape[-1] // values.shape[-1])
            left = scores.like(np.where(inside, scores.v[one], -np.inf), np.where(inside, scores.e[one], 0.0))
            ok[row] |= bool(admits_top_k(left, chosen[one], np.where(inside[:, None], keys[one], np.nan))[0])
    return ok


def _kept_groups(values: Bounded, kept: int, keys: NDArray[Any]) -> Iterator[list[list[int]]]:
    """For each row the sets of `kept` groups that may be the best: no other one is certainly better."""
    low, high = values.v - values.e, values.v + values.e
    index = np.arange(values.shape[-1])
    same = np.all(keys[:, :, None] == keys[:, None], axis=-1)
    beats = np.where(same, index[:, None] < index, low[:, :, None] > high[:, None])
    for row in beats:
        certain = index[row.sum(1) >= index.size - kept]
        open_ones = index[(row.sum(0) < kept) & ~np.isin(index, certain)]
        sets = [[*certain, *some] for some in combinations(open_ones, kept - certain.size)]
        yield [some for some in sets if not np.delete(row[:, some], some, 0).any()]
