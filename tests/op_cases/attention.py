"""Cases of the paged cache and attention over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .case import KV, F, case, ints, normal, rng


def cache(blocks: int, size: int, heads: int, k_dim: int, v_dim: int) -> KV:
    """A cache full of normal numbers."""
    made = rng("cache", blocks, size, heads, k_dim, v_dim)
    return KV(made.normal(size=(blocks, size, heads, k_dim)), made.normal(size=(blocks, size, heads, v_dim)))


def _write(slots: Sequence[int], note: str, v_dim: int = 4) -> None:
    tokens = len(slots)
    case(
        "write_cache", cache(3, 4, 2, 4, v_dim), normal(tokens, 2, 4), normal(tokens, 2, v_dim), ints(slots), note=note
    )


_write([0, 1, 2, 11, 5], "plain")
_write([7, -1, 3, -1], "holes")
_write([-1, -1], "nothing")
_write([], "empty")
_write([4, 9, 0], "narrow values", 6)


def _attend(
    note: str,
    sequences: Sequence[tuple[int, int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    k_dim: int = 8,
    v_dim: int = 8,
    size: int = 4,
    unused: int = 0,
    sinks: bool = False,
    bias: bool = False,
    **attributes: Any,
) -> None:
    """Sequences are (queries, keys); blocks are dealt out in random order, entries that no query sees are garbage."""
    window = attributes.get("window")
    longest = max([keys for _, keys in sequences] or [0])
    wide = -(-longest // size) + 1
    blocks = sum(-(-keys // size) for _, keys in sequences) + 2
    free = list(rng("blocks", note).permutation(blocks))
    table = np.full((len(sequences), wide), -1)
    for row, (queries, keys) in zip(table, sequences, strict=True):
        first = max(0, keys - queries - window + 1) // size if window else 0
        for j in range(first, -(-keys // size)):
            row[j] = free.pop()
        row[:first] = [-1, 10**6][first % 2]
    start = np.cumsum([0, *(queries for queries, _ in sequences)])
    tokens = int(start[-1]) + unused
    operands: list[Any] = [F(rng("q", note).normal(size=(tokens, heads, k_dim)) * 2)]
    operands += [cache(blocks, size, kv_heads, k_dim, v_dim), ints(start), ints([keys for _, keys in sequences])]
    operands += [ints(table), normal(heads) if sinks else None]
    operands += [normal(tokens, heads, longest) if bias else None]
    case("paged_attention", *operands, note=note, scale=k_dim**-0.5, **attributes)


_attend("prefill", [(5, 5), (3, 3)])
_attend("decode", [(1, 9), (1, 1), (1, 4)])
_attend("mixture", [(4, 10), (1, 7), (6, 6)])
_attend("one head", [(3, 3)], heads=1, kv_heads=1, k_dim=5, v_dim=3)
_attend("many heads", [(2, 5)], heads=6, kv_heads=2, k_dim=4, v_dim=6)
_attend("no grouping", [(2, 5), (1, 3)], heads=3, kv_heads=3)
_attend("window", [(4, 12), (1, 9), (2, 2)], window=3)
_attend("window wider", [(2, 5)], window=100)
_attend("window of one", [(3, 6)], window=1)
_attend("softcap", [(3, 7)], softcap=5.0)
_attend("sinks", [(3, 7), (1, 2)], sinks=True)
_attend("bias", [(3, 7), (1, 2)], bias=True)
_attend("everything", [(3, 11), (1, 6)], sinks=True, bias=True, window=4, softcap=20.0)
_attend("not causal", [(3, 7)], causal=False)
_attend("not causal window", [(3, 7)], causal=False, window=2)
_attend("unused rows", [(2, 4), (1, 3)], unused=3)
_attend("empty sequences", [(0, 5), (2, 0), (1, 2), (0, 0)])
_attend("more queries than keys", [(4, 2)])
_attend("no sequences", [], unused=2)
_attend("no tokens", [(0, 3)])
_attend("long", [(2, 70), (1, 129)], heads=2, kv_heads=1, k_dim=16, v_dim=16, size=16)
