"""Cases of the latent cache, attention over it, and the write that norms and turns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xinheng.core.ir.dtype import float32

from .case import Latent, T, case, ints, normal, rng


def _cache(blocks: int, size: int, dim: int, rope: int) -> Latent:
    made = rng("latents", blocks, size, dim, rope)
    return Latent(made.normal(size=(blocks, size, dim)), made.normal(size=(blocks, size, rope)))


for _slots, _note in (([0, 7, 11], "plain"), ([5, -1, 2], "holes"), ([], "empty"), ([-1], "nothing")):
    _tokens = len(_slots)
    case("write_latent_cache", _cache(3, 4, 8, 4), normal(_tokens, 8), normal(_tokens, 4), ints(_slots), note=_note)
    _angles = rng("angles", _tokens).uniform(0, 6.3, (_tokens, 2))
    _tables = (T(np.cos(_angles), float32), T(np.sin(_angles), float32))
    for _pairs in (False, True):
        _where = (_cache(3, 4, 8, 6), ints(_slots))
        case(
            "kv_norm_rope_cache",
            *(normal(_tokens, 14), normal(8, shift=1.0), *_tables, *_where),
            eps=1e-5,
            interleaved=_pairs,
            note=_note,
        )


def _attend(
    note: str, sequences: Sequence[tuple[int, int]], *, heads: int = 3, unused: int = 0, causal: bool = True
) -> None:
    size, blocks = 4, sum(-(-keys // 4) for _, keys in sequences) + 2
    free = list(rng("latent blocks", note).permutation(blocks))
    table = np.full((len(sequences), max([-(-keys // size) for _, keys in sequences] or [0]) + 1), -1)
    table[1::2] = 10**6
    for row, (_, keys) in zip(table, sequences, strict=True):
        for j in range(-(-keys // size)):
            row[j] = free.pop()
    start = np.cumsum([0, *(queries for queries, _ in sequences)])
    tokens, lengths = int(start[-1]) + unused, ints([keys for _, keys in sequences])
    cache = _cache(blocks, size, 8, 4)
    queries = (normal(tokens, heads, 8), normal(tokens, heads, 4))
    case("mla_attention", *queries, cache, ints(start), lengths, ints(table), scale=0.3, causal=causal, note=note)
    case("gather_latent_cache", cache, lengths, ints(table), note=note)


_attend("prefill", [(5, 5), (3, 3)])
_attend("decode", [(1, 9), (1, 1), (1, 4)])
_attend("mixture", [(4, 10), (1, 7)])
_attend("not causal", [(3, 7)], causal=False)
_attend("one head", [(2, 6)], heads=1)
_attend("unused rows", [(2, 4), (1, 3)], unused=3)
_attend("empty sequences", [(0, 5), (2, 0), (1, 2)])
_attend("no sequences", [], unused=2)
