"""Cases of the latent cache, attention over it, and the write that norms and turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xinheng.core.ir.dtype import float32

from ..case import Tier, case
from ..draw import EVERY, USUAL
from ..operands import Latent, Special, T, gain, ints, normal, rng, special_rows
from .attention import BLOCKS
from .sequences import Scene, around, paged, starts


def _cache(blocks: int, size: int, dim: int, rope: int) -> Latent:
    made = rng("latents", blocks, size, dim, rope)
    return Latent(made.normal(size=(blocks, size, dim)), made.normal(size=(blocks, size, rope)))


def _tables(positions: Sequence[int], half: int) -> tuple[T, T]:
    angles = np.outer(positions, 1e4 ** (-np.arange(half) / half))
    return T(np.cos(angles), float32), T(np.sin(angles), float32)


def _write(note: str, slots: Sequence[int], *, size: int = 4, dim: int = 8, rope: int = 6, turned: int = 4) -> None:
    """Both ops that write, and the second with both pairings."""
    tokens, label = len(slots), note.replace(" ", "-")
    where = _cache(max([1, *slots]) // size + 2, size, dim, rope), ints(slots)
    case("write_latent_cache", where[0], normal(tokens, dim), normal(tokens, rope), where[1], label=label)
    data = EVERY if note == "wide" else USUAL
    given = normal(tokens, dim + rope), gain(dim), *_tables([4090 + 3 * i for i in range(tokens)], turned // 2)
    for pairs in (False, True):
        word = f"{label}_pairs" if pairs else label
        case("kv_norm_rope_cache", *given, *where, eps=1e-5, interleaved=pairs, label=word, data=data)


_write("plain", [0, 7, 11])
_write("holes", [5, -1, 2])
_write("nothing", [-1])
_write("empty", [])
_write("odd", [3, 1, -1, 8], dim=33, rope=10)
_write("wide", [2, 9, 5, 6, 0], dim=512, rope=64, turned=64)
for _size in BLOCKS:
    _write(f"B{_size}", [0, _size - 1, _size, -1, 2 * _size + 1], size=_size, dim=64, rope=16, turned=16)
_LOUD = special_rows(8), special_rows(6), ints(range(63))
case("write_latent_cache", _cache(17, 4, 8, 6), *_LOUD, label="specials", special=True)
for _eps, _scale in ((1e-6, 1e-3), (1e-5, 3e-3)):
    case(
        "kv_norm_rope_cache",
        *(normal(5, 320 + 16, scale=_scale), gain(320), *_tables(range(5), 8), _cache(3, 4, 320, 16)),
        ints([3, 2, 11, 6, 0]),
        eps=_eps,
        label=f"eps-{_eps}",
        seeds=(2, 8),
    )
case(
    "kv_norm_rope_cache",
    *(special_rows(14), gain(8), *_tables(range(63), 2), _cache(16, 4, 8, 6), ints(range(63))),
    eps=1e-5,
    label="specials",
    special=True,
)


def _attend(note: str, scene: Scene, size: int = 4, tier: Tier = Tier.DEFAULT, dims: tuple[int, int] = (8, 4)) -> None:
    """A case of `mla_attention` and one of reading the same cache."""
    label, heads = note.replace(" ", "-"), scene.heads[0]
    paging = paged(f"latent {note}", scene.sequences, size)
    pages = _cache(len(paging.read), size, *dims)
    held = Latent(paging.filled(pages.latent), paging.filled(pages.rope))
    where = held, ints([keys for _, keys in scene.sequences]), paging.table
    queries = [normal(scene.tokens, heads, dim, scale=scene.sharp) for dim in dims]
    first = starts([n for n, _ in scene.sequences])
    spread: dict[str, Any] = {"data": scene.data, "seeds": scene.seeds, "tier": tier}
    how: dict[str, Any] = {} if scene.causal else {"causal": False}
    case("mla_attention", *queries, held, first, *where[1:], scale=sum(dims) ** -0.5, label=label, **spread, **how)
    case("gather_latent_cache", *where, label=label, tier=tier)


_SCENES: dict[str, Scene] = {
    "prefill": Scene([(5, 5), (3, 3)], heads=(3, 1), data=("normal", "uniform", "tiny", "outliers"), seeds=(2, 8)),
    "decode": Scene(
        [(1, 9), (1, 1), (1, 4)], heads=(3, 1), data=("normal", "uniform", "tiny", "outliers"), seeds=(2, 8)
    ),
    "mixture": Scene([(4, 10), (1, 7), (6, 6)], heads=(3, 1), data=("normal", "uniform")),
    "not causal": Scene([(3, 7), (2, 2)], heads=(3, 1), causal=False),
    "one head": Scene([(2, 6)], heads=(1, 1)),
    "16 heads": Scene([(2, 21), (1, 33)], heads=(16, 1)),
    "unused rows": Scene([(2, 4), (1, 3)], heads=(3, 1), unused=3),
    "empty sequences": Scene([(0, 5), (2, 0), (1, 2)], heads=(3, 1)),
    "more queries than keys": Scene([(4, 2)], heads=(2, 1)),
    "no sequences": Scene([], heads=(3, 1), unused=2),
    "long": Scene([(1, 600), (2, 530)], heads=(2, 1), data=("normal", "tiny")),
}
for _note, _scene in _SCENES.items():
    _attend(_note, _scene)
_PLAIN = Special(lambda s: np.reshape(special_rows(8).layout(s), (63, 1, 8)))
_TURNED = Special(lambda s: np.reshape(special_rows(6).layout(s), (63, 1, 6)))
case(
    "mla_attention",
    *(_PLAIN, _TURNED, _cache(3, 4, 8, 6), ints([0, 63]), ints([12]), ints([[2, 0, 1]])),
    label="special-queries",
    special=True,
    scale=0.3,
    causal=False,
)
case("gather_latent_cache", _cache(6, 4, 8, 4), ints([6, 7]), ints([[-1, 4], [10**6, 0]]), label="freed-blocks")
_attend("odd widths", Scene([(2, 6), (1, 9)], heads=(3, 1)), dims=(33, 10))
_attend("wide", Scene([(2, 6), (1, 21)], heads=(4, 1), data=("normal", "uniform")), dims=(128, 32))
_attend("full width", Scene([(2, 40), (1, 65)], heads=(16, 1)), 16, Tier.FULL, dims=(512, 64))
for _size in BLOCKS:
    for _note in ("decode", "chunks"):
        _attend(f"B{_size} {_note}", around(_size)[_note], _size)
