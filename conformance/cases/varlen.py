"""Cases of attention over sequences side by side, and of moves between caches and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import float32

from ..case import Tier, case
from ..operands import Latent, Special, floats, gain, ints, normal, rng, special_rows
from .attention import BLOCKS, cache
from .sequences import SCENES, Scene, paged, starts


def _attend(note: str, scene: Scene, spare: int = 0, tier: Tier = Tier.DEFAULT) -> None:
    """A case of `sdpa_varlen` with `spare` rows of keys behind the last sequence."""
    heads, kv_heads = scene.heads
    keys = [length for _, length in scene.sequences]
    rows, (k_dim, v_dim) = sum(keys) + spare, scene.widths
    operands: list[Any] = [normal(scene.tokens, heads, k_dim, scale=scene.sharp)]
    operands += [gain(rows, kv_heads, k_dim, shift=0.0), gain(rows, kv_heads, v_dim, shift=0.0)]
    operands += [starts([n for n, _ in scene.sequences]), starts(keys)]
    scene.enter("sdpa_varlen", note, *operands, tier=tier)


for _note, _scene in SCENES.items():
    _attend(_note, _scene)
_attend("spare keys", Scene([(2, 4), (1, 3)], unused=1, bias=True), spare=7)
_attend("prefill of 300", Scene([(300, 300)], widths=(64, 64)), tier=Tier.FULL)
_SPARE = floats(np.where(np.arange(9)[:, None, None] < 7, rng("spare").normal(size=(9, 2, 8)), np.nan))
case(
    "sdpa_varlen",
    *(normal(4, 4, 8), _SPARE, _SPARE, ints([0, 2, 3]), ints([0, 4, 7])),
    label="spare-keys-NaN",
    scale=0.3,
)
_LOUD = floats([200.0, -200.0, 0.0, 30.0])
case(
    "sdpa_varlen",
    *(normal(4, 4, 8, scale=8.0), gain(7, 2, 8), gain(7, 2, 8), ints([0, 2, 4]), ints([0, 4, 7]), _LOUD),
    label="loud-sinks",
    data=("normal", "uniform"),
    scale=0.3,
)
_ROWS = Special(lambda s: np.reshape(special_rows(8).layout(s), (63, 1, 8)))
case(
    "sdpa_varlen",
    *(_ROWS, normal(12, 1, 8), normal(12, 1, 8), ints([0, 63]), ints([0, 12])),
    label="special-queries",
    special=True,
    scale=0.3,
    causal=False,
)

_LENGTHS = ints([5, 0, 4, 9])
_TABLE = ints([[2, 0, -1], [-1, 99, -1], [5, -7, 0], [1, 3, 4]])
case("gather_kv_cache", cache(6, 4, 2, 8, 5), _LENGTHS, _TABLE, label="B4")
case("gather_kv_cache", cache(6, 4, 2, 8, 5, quantized=True), _LENGTHS, _TABLE, label="int8", kinds=[float32])
case("gather_kv_cache", cache(6, 4, 1, 3, 3), ints([6, 7]), ints([[-1, 4], [10**6, 0]]), label="freed-blocks")
case("gather_kv_cache", cache(2, 4, 1, 3, 3), ints([]), ints(np.zeros((0, 2))), label="no-sequences")
case("gather_kv_cache", cache(2, 4, 1, 3, 3), ints([0, 0]), ints([[0, 1], [1, 0]]), label="no-keys")
for _size in BLOCKS:
    _paging = paged(f"gathered {_size}", [(1, 1), (1, _size - 1), (1, _size), (1, _size + 1), (1, 3 * _size)], _size)
    _there = ints([1, _size - 1, _size, _size + 1, 3 * _size])
    case("gather_kv_cache", cache(len(_paging.read), _size, 2, 16, 8), _there, _paging.table, label=f"B{_size}")

case("copy_blocks", cache(5, 4, 2, 3, 6), ints([[0, 3], [2, 1]]), label="B4")
case("copy_blocks", cache(5, 4, 2, 3, 6), ints([[4, 0], [4, 1]]), label="one-source")
case("copy_blocks", cache(3, 2, 1, 2, 2), ints(np.zeros((0, 2))), label="nothing")
case("copy_blocks", cache(9, 16, 2, 16, 8), ints([[0, 8], [7, 1], [7, 2], [3, 6]]), label="B16")
case("copy_blocks", cache(4, 128, 1, 8, 8), ints([[3, 0], [1, 2]]), label="B128")
_LATENTS = rng("copied").normal(size=(4, 2, 5))
case("copy_blocks", Latent(_LATENTS, _LATENTS[..., :2]), ints([[1, 3]]), label="latent")
