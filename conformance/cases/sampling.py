"""Cases of sampling, with its uniform numbers given, and of where these come from.

One draw tells little about a boundary, so each sample has hundreds of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.ir.dtype import float32, uint32

from ..case import Tier, case
from ..operands import T, ints, rng

ROWS = 640
"""Draws of a sample; of those that a wrong boundary of top-p changes, one in six is seen."""
Logits = NDArray[np.float64]


def _sample(
    note: str,
    logits: Logits,
    uniform: Sequence[float] | NDArray[Any] | None = None,
    temperature: Any = 1.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    tier: Tier = Tier.DEFAULT,
) -> None:
    """Rows of logits, repeated until there is one for each uniform number; parameters are numbers or one per row."""
    given = rng("uniform", note).random(ROWS) if uniform is None else np.asarray(uniform, np.float64)
    rows = len(given)
    tables = np.resize(logits, (rows, logits.shape[-1])) if rows else np.zeros((0, logits.shape[-1]))

    def column(x: Any) -> T:
        return T(np.resize(np.asarray(x, np.float64), rows), float32)

    case(
        "top_k_top_p_sample",
        *(T(tables, float32), T(given, float32), column(temperature), ints(np.resize(np.asarray(top_k), rows))),
        *(column(top_p), column(min_p)),
        label=f"{'x'.join(map(str, tables.shape))}_{note.replace(' ', '-')}",
        tier=tier,
    )


_FEW = np.array([[2.0, 0.5, 2.0, -1.0, 1.5, 0.0, -3.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
_SOME = rng("logits").normal(0, 2, (ROWS, 41))
_MANY = rng("many logits").normal(0, 3, (16, 1031))
_TIED = rng("tied logits").integers(-4, 5, (ROWS, 33)) / 2
_PEAKED = np.where(np.arange(41) == rng("peak").integers(0, 41, (ROWS, 1)), 12.0, _SOME)
_MASKED = np.where(rng("mask").random((ROWS, 41)) < 0.4, -np.inf, _SOME)
_MASKED[:, 7] = 0.5
_ENDS = [0.0, 2.0**-24, 0.05, 0.25, 0.3, 0.5, 0.62, 0.75, 0.9, 0.999, 1 - 2.0**-24]

for _note, _logits in (("few", _FEW), ("some", _SOME), ("tied", _TIED), ("peaked", _PEAKED), ("masked", _MASKED)):
    _sample(f"{_note} plain", _logits)
    _sample(f"{_note} cold", _logits, temperature=0.25)
    _sample(f"{_note} hot", _logits, temperature=3.0)
    _sample(f"{_note} greedy", _logits, temperature=0.0)
    for _k in (1, 2, 5, 99):
        _sample(f"{_note} top_k {_k}", _logits, top_k=_k)
    for _p in (0.0, 0.1, 0.55, 0.9, 0.99):
        _sample(f"{_note} top_p {_p}", _logits, top_p=_p)
    for _p in (0.05, 0.2, 2.0):
        _sample(f"{_note} min_p {_p}", _logits, min_p=_p)
    _sample(f"{_note} all", _logits, temperature=0.8, top_k=5, top_p=0.9, min_p=0.02)
    _sample(f"{_note} top_p of top_k", _logits, top_k=6, top_p=0.7)
    _sample(f"{_note} min_p of top_p", _logits, top_p=0.8, min_p=0.3)
    _mixed: dict[str, Any] = {"temperature": [1.0, 0.0, 0.5, 2.0, 1.5], "top_k": [0, 3, 7]}
    _sample(f"{_note} mixed", _logits, **_mixed, top_p=[1.0, 0.5, 0.9, 0.75], min_p=[0.0, 0.1])
    _sample(f"{_note} ends", _logits, _ENDS)
    _sample(f"{_note} ends top_p", _logits, _ENDS, top_p=0.6)
_KEPT: dict[str, dict[str, Any]] = {
    "plain": {},
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 50},
    "min_p": {"min_p": 0.05},
}
for _note, _how in _KEPT.items():
    _sample(f"many {_note}", _MANY, rng("uniform many", _note).random(160), temperature=0.8, **_how)
_sample("one draw", _SOME[:1], [0.4])
_sample("empty", _FEW, [])
_sample("one token", np.zeros((1, 1)), [0.5])
_VOCABULARY = rng("vocabulary").normal(0, 3, (4, 32000))
_sample("vocabulary", _VOCABULARY, rng("uniform vocabulary").random(32), top_k=40, top_p=0.95, tier=Tier.FULL)


def _uniform(note: str, seeds: Any, counters: Any) -> None:
    rows = T(np.asarray(seeds, np.uint64).reshape(-1, 2), uint32), T(np.asarray(counters, np.uint64), uint32)
    case("random_uniform", *rows, label=note)


_uniform("zeros", np.zeros((2, 2)), [0, 1])
_uniform("run", np.tile([[20, 26]], (4096, 1)), np.arange(4096))
_uniform("seeds", np.stack([np.arange(4096), np.arange(4096)[::-1]], axis=-1), np.full(4096, 7))
_uniform("random", rng("seeds").integers(0, 2**32, (4096, 2)), rng("counters").integers(0, 2**32, 4096))
_LARGEST = 2**32 - 1
_uniform(
    "ends", [[0, 0], [_LARGEST, _LARGEST], [0, _LARGEST], [2**31, 1], [1, 2**31]], [_LARGEST, _LARGEST, 0, 2**31, 1]
)
_uniform("empty", np.zeros((0, 2)), np.zeros(0))


def _speculate(
    note: str,
    drafts: int,
    size: int,
    rows: int = ROWS,
    *,
    same: bool = False,
    greedy: bool = False,
    impossible: bool = False,
    ended: int = 0,
) -> None:
    """Drafts from one random distribution, verified by another one or by the same; some rows have fewer drafts.

    An impossible draft is of a token that both distributions give no chance.
    """
    made = rng("speculate", note)
    weights = made.uniform(0.01, 1, (rows, 2 * drafts + 1, size)) ** 3
    probs = weights / np.sum(weights, axis=-1, keepdims=True)
    if greedy:
        probs = np.eye(size)[np.argmax(probs, axis=-1)]
    if impossible:
        probs[..., 1] = 0
        probs = probs / np.sum(probs, axis=-1, keepdims=True)
    draft, target = probs[:, :drafts], probs[:, drafts:]
    if same:
        target = np.concatenate([draft, target[:, drafts:]], axis=1)
    # as a model drafts them, the likelier the more often
    ids = np.argmax(draft * made.random(draft.shape), axis=-1) if drafts else np.zeros((rows, 0), int)
    if impossible:
        ids[::2, drafts // 2] = 1
    if ended:
        ids[::ended, drafts // 2 :] = -1
    case(
        "rejection_sample",
        *(ints(ids), T(draft, float32), T(target, float32), T(made.random((rows, drafts + 1)), float32)),
        label=f"{rows}x{drafts}x{size}_{note.replace(' ', '-')}",
    )


_speculate("plain", 4, 7)
_speculate("long", 3, 129)
_speculate("one draft", 1, 33)
_speculate("two tokens", 3, 2)
_speculate("all stay", 3, 11, same=True)
_speculate("greedy", 4, 3, greedy=True)
_speculate("impossible drafts", 3, 5, same=True, impossible=True)
_speculate("fewer drafts", 4, 7, ended=3)
_speculate("no drafts", 0, 5)
_speculate("nothing drafted", 2, 5, ended=1)
_speculate("no rows", 2, 5, 0)
