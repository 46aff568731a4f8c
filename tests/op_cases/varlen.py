"""Cases of attention over sequences side by side, and of moves between caches and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .attention import cache
from .case import F, Latent, case, ints, normal, rng


def _attend(
    note: str,
    sequences: Sequence[tuple[int, int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    k_dim: int = 8,
    v_dim: int = 8,
    unused: int = 0,
    spare: int = 0,
    sinks: bool = False,
    bias: bool = False,
    **attributes: Any,
) -> None:
    """Sequences are (queries, keys); `unused` rows of queries and `spare` rows of keys lie behind them."""
    query_start = np.cumsum([0, *(queries for queries, _ in sequences)])
    key_start = np.cumsum([0, *(keys for _, keys in sequences)])
    tokens, keys = int(query_start[-1]) + unused, int(key_start[-1]) + spare
    longest = max([length for _, length in sequences] or [0])
    made = rng("sdpa", note)
    case(
        "sdpa_varlen",
        F(made.normal(size=(tokens, heads, k_dim)) * 2),
        F(made.normal(size=(keys, kv_heads, k_dim))),
        F(made.normal(size=(keys, kv_heads, v_dim))),
        ints(query_start),
        ints(key_start),
        normal(heads) if sinks else None,
        normal(tokens, heads, longest) if bias else None,
        note=note,
        scale=k_dim**-0.5,
        **attributes,
    )


_attend("prefill", [(5, 5), (3, 3)])
_attend("decode", [(1, 9), (1, 1), (1, 4)])
_attend("mixture", [(4, 10), (1, 7), (6, 6)])
_attend("one head", [(3, 3)], heads=1, kv_heads=1, k_dim=5, v_dim=3)
_attend("many heads", [(2, 5)], heads=6, kv_heads=2, k_dim=4, v_dim=6)
_attend("window", [(4, 12), (1, 9), (2, 2)], window=3)
_attend("softcap", [(3, 7)], softcap=5.0)
_attend("sinks", [(3, 7), (1, 2)], sinks=True)
_attend("bias", [(3, 7), (1, 2)], bias=True)
_attend("everything", [(3, 11), (1, 6)], sinks=True, bias=True, window=4, softcap=20.0)
_attend("not causal", [(3, 7), (2, 2)], causal=False)
_attend("not causal window", [(3, 7)], causal=False, window=2)
_attend("unused rows", [(2, 4), (1, 3)], unused=3)
_attend("spare keys", [(2, 4), (1, 3)], spare=2, unused=1, bias=True)
_attend("empty sequences", [(0, 5), (2, 0), (1, 2), (0, 0)], sinks=True)
_attend("more queries than keys", [(4, 2)])
_attend("no sequences", [], unused=2)
_attend("no tokens", [(0, 3)])
_attend("long", [(2, 70), (1, 129)], heads=2, kv_heads=1, k_dim=16, v_dim=16)

_LENGTHS = ints([5, 0, 4, 9])
_TABLE = ints([[2, 0, -1], [-1, 99, -1], [5, -7, 0], [1, 3, 4]])
case("gather_kv_cache", cache(6, 4, 2, 8, 5), _LENGTHS, _TABLE)
case("gather_kv_cache", cache(6, 4, 1, 3, 3), ints([6, 7]), ints([[-1, 4], [10**6, 0]]), note="freed blocks")
case("gather_kv_cache", cache(2, 4, 1, 3, 3), ints([]), ints(np.zeros((0, 2))), note="no sequences")
case("gather_kv_cache", cache(2, 4, 1, 3, 3), ints([0, 0]), ints([[0, 1], [1, 0]]), note="no keys")

case("copy_blocks", cache(5, 4, 2, 3, 6), ints([[0, 3], [2, 1]]))
case("copy_blocks", cache(5, 4, 2, 3, 6), ints([[4, 0], [4, 1]]), note="one source")
case("copy_blocks", cache(3, 2, 1, 2, 2), ints(np.zeros((0, 2))), note="nothing")
_LATENTS = rng("copied").normal(size=(4, 2, 5))
case("copy_blocks", Latent(_LATENTS, _LATENTS[..., :2]), ints([[1, 3]]), note="latent")
