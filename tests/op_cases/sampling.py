"""Cases of sampling and its random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xinheng.core.ir.dtype import float32, uint32

from .case import T, case, ints, rng

_LOGITS = np.array([[2.0, 0.5, 2.0, -1.0, 1.5, 0.0, -3.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])


def _sample(
    note: str,
    logits: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    uniform: Sequence[float],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> None:
    """The same parameters for every row; a row of logits per uniform number."""
    rows = len(uniform)
    tables = np.resize(logits, (rows, logits.shape[-1])) if rows else np.zeros((0, logits.shape[-1]))
    same = [T(np.full(rows, x), float32) for x in (temperature, top_p, min_p)]
    case(
        "top_k_top_p_sample",
        T(tables, float32),
        T(np.array(uniform, np.float64), float32),
        same[0],
        ints(np.full(rows, top_k)),
        *same[1:],
        note=note,
    )


_U = [0.05, 0.3, 0.31, 0.62, 0.9, 0.999]
_RANDOM = rng("logits").normal(0, 2, (6, 41))
_sample("plain", _LOGITS, _U)
_sample("random", _RANDOM, _U)
_sample("cold", _RANDOM, _U, temperature=0.25)
_sample("hot", _RANDOM, _U, temperature=3.0)
_sample("greedy", _LOGITS, _U, temperature=0.0)
_sample("top_k", _RANDOM, _U, top_k=3)
_sample("top_k of one", _LOGITS, _U, top_k=1)
_sample("top_k too large", _LOGITS, _U, top_k=99)
_sample("top_p", _RANDOM, _U, top_p=0.55)
_sample("top_p of nothing", _RANDOM, _U, top_p=0.0)
_sample("min_p", _RANDOM, _U, min_p=0.2)
_sample("min_p above one", _RANDOM, _U, min_p=2.0)
_sample("all", _RANDOM, _U, temperature=0.8, top_k=10, top_p=0.9, min_p=0.02)
_sample("masked", np.where(np.arange(7) % 3 == 1, -np.inf, _LOGITS), _U)
_sample("empty", _LOGITS, [])
_sample("one token", np.zeros((1, 1)), [0.5])

case("random_uniform", T(np.zeros((2, 2)), uint32), T(np.array([0, 1]), uint32))
_seeds = rng("seeds").integers(0, 2**32, (50, 2))
case("random_uniform", T(_seeds, uint32), T(rng("counters").integers(0, 2**32, 50), uint32), note="random")
case("random_uniform", T(np.zeros((0, 2)), uint32), T(np.zeros(0), uint32), note="empty")


def _speculate(note: str, drafts: int, size: int, rows: int, *, same: bool = False, greedy: bool = False) -> None:
    """Drafts from one random distribution, verified by another one or by the same."""
    made = rng("speculate", note)
    probs = made.dirichlet(np.full(size, 0.5), (rows, 2 * drafts + 1))
    if greedy:
        probs = np.eye(size)[np.argmax(probs, axis=-1)]
    draft, target = probs[:, :drafts], probs[:, drafts:]
    if same:
        target = np.concatenate([draft, target[:, drafts:]], axis=1)
    ids = np.argmax(draft + made.uniform(0, 0.1, draft.shape) * (draft > 0), axis=-1)
    ids[: rows // 4, drafts // 2 :] = -1
    case(
        "rejection_sample",
        ints(ids),
        T(draft, float32),
        T(target, float32),
        T(made.uniform(0, 0.999, (rows, drafts + 1)), float32),
        note=note,
    )


_speculate("plain", 4, 7, 12)
_speculate("one draft", 1, 33, 16)
_speculate("all stay", 3, 11, 8, same=True)
_speculate("greedy", 4, 3, 16, greedy=True)
_speculate("no drafts", 0, 5, 3)
_speculate("no rows", 2, 5, 0)
