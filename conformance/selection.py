"""Whether selected indices and sampled tokens are those of a correct kernel, given that scores carry an error."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.ir.numeric import shift

from .bounded import Bounded

Indices = NDArray[np.integer[Any]]


def admits_top_k(scores: Bounded, chosen: Indices) -> NDArray[np.bool_]:
    """Rows of `scores` [..., n] for which `chosen` int [..., k], best first, is admissible; the shape is [...].

    Nothing left out, or placed later, may be certainly larger; exact ties go to the lower index. Indices must be in
    range and differ. Argmax is the case k = 1.
    """
    n, k = scores.shape[-1], chosen.shape[-1]
    valid = np.all((chosen >= 0) & (chosen < n), axis=-1)
    chosen = np.where(valid[..., None], chosen, 0).astype(np.int64)
    remaining = np.ones(scores.shape, bool)
    np.put_along_axis(remaining, chosen, False, -1)
    ok = valid & (n - remaining.sum(-1) == k)
    lowest, exact = scores.v - scores.e, scores.e == 0
    for j in reversed(range(k)):
        index = chosen[..., j : j + 1]
        value, error = (np.take_along_axis(part, index, -1) for part in (scores.v, scores.e))
        tie = (scores.v == value) & exact & (error == 0) & (np.arange(n) < index)
        ok &= ~np.any(remaining & ((lowest > value + error) | tie), axis=-1)
        np.put_along_axis(remaining, index, True, -1)
    return np.asarray(ok)


def admits_sample(
    logits: Bounded, uniform: NDArray[np.floating[Any]], token: Indices, top_p: float = 1.0
) -> NDArray[np.bool_]:
    """Rows of `logits` [..., n] for which `token` int [...] is what the number `uniform` [...] in [0, 1) selects.

    The declared sampler sorts by logit (ties: lower index), keeps the shortest run whose probabilities reach `top_p`,
    and takes the token in whose share of the running sum C the number u C lies. Admissible is a token that owns it
    within the error of the running sum, for some admissible end of the run. A token of logit -inf never is.
    """
    x: Any = logits
    n = logits.shape[-1]
    order = np.argsort(-logits.v, axis=-1, kind="stable")
    x = np.take_along_axis(x, order, -1)
    c: Any = np.cumsum(_softmax(x), axis=-1)
    before: Any = np.concatenate([np.zeros((*c.shape[:-1], 1)), c[..., :-1]], axis=-1)
    p = logits.wrap(float(top_p))
    may_keep = before.v - before.e < p.v + p.e
    may_stop = (c.v + c.e >= p.v - p.e) | (np.arange(n) == n - 1)
    valid = (token >= 0) & (token < n)
    rank = np.argmax(order == np.where(valid, token, 0)[..., None], axis=-1)[..., None]
    possible = valid & (np.take_along_axis(x.v, rank, -1)[..., 0] > -np.inf)
    target = c * np.asarray(uniform)[..., None]
    low: Any = np.take_along_axis(before, rank, -1)
    high: Any = np.take_along_axis(c, rank, -1)
    owns = (low.v - low.e <= target.v + target.e) & (target.v - target.e <= high.v + high.e)
    return np.asarray(np.any(may_keep & may_stop & owns & (np.arange(n) >= rank), axis=-1) & possible)


def _softmax(x: Any) -> Any:
    z = np.exp(x - shift(np.max(x, axis=-1, keepdims=True)))
    return z / np.sum(z, axis=-1, keepdims=True)
