"""Cases of the paged cache and attention over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..case import Tier, case
from ..operands import KV, Special, floats, ints, normal, rng, special_rows
from .sequences import SCENES, Scene, around, paged, starts

BLOCKS = (16, 32, 64, 128)
"""The block sizes that devices mostly take."""


def cache(blocks: int, size: int, heads: int, k_dim: int, v_dim: int, quantized: bool = False) -> KV:
    """A cache full of normal numbers."""
    made = rng("cache", blocks, size, heads, k_dim, v_dim)
    k, v = (made.normal(size=(blocks, size, heads, width)) for width in (k_dim, v_dim))
    return KV(k, v, quantized)


def _write(
    slots: Sequence[int],
    note: str,
    *,
    size: int = 4,
    heads: int = 2,
    widths: tuple[int, int] = (4, 4),
    quantized: bool = False,
) -> None:
    tokens, blocks = len(slots), max([1, *slots]) // size + 2
    new = normal(tokens, heads, widths[0]), normal(tokens, heads, widths[1])
    held = cache(blocks, size, heads, *widths, quantized)
    case("write_cache", held, *new, ints(slots), label=note.replace(" ", "-"))


_write([0, 1, 2, 11, 5], "plain")
_write([7, -1, 3, -1], "holes")
_write([-1, 4, 9, -1], "holes at the ends")
_write([-1, -1], "nothing")
_write([], "empty")
_write([4, 9, 0], "narrow values", widths=(4, 6))
_write([8, 2, 5], "odd", heads=3, widths=(5, 7))
_write([0], "one")
_write([0, 1, 2, 11, 5], "int8", quantized=True)
_write([7, -1, 3, -1], "int8 holes", heads=3, widths=(5, 7), quantized=True)
_write([], "int8 empty", quantized=True)
_write(list(range(13, 34)), "int8 run", size=16, widths=(64, 48), quantized=True)
case(
    "write_cache",
    cache(2, 4, 2, 8, 4, True),
    floats(np.zeros((3, 2, 8))),
    floats(np.zeros((3, 2, 4))),
    ints([1, 6, 2]),
    label="int8-zeros",
)
for _size in BLOCKS:
    _write([0, _size - 1, _size, 2 * _size + 1, -1, 3 * _size - 1], f"B{_size}", size=_size, widths=(64, 64))
    _write(list(range(_size - 3, 2 * _size + 2)), f"B{_size} run", size=_size, heads=1, widths=(16, 8))
_ROWS = Special(lambda s: np.reshape(special_rows(8).layout(s), (63, 1, 8)))
case("write_cache", cache(17, 4, 1, 8, 8), _ROWS, _ROWS, ints(range(63)), label="specials", special=True)


def _attend(
    note: str,
    scene: Scene,
    size: int = 4,
    garbage: float | None = None,
    tier: Tier = Tier.DEFAULT,
    quantized: bool = False,
) -> None:
    """A case of `paged_attention`; keys and values are normal, queries as the case has them."""
    heads, kv_heads = scene.heads
    paging = paged(note, scene.sequences, size, scene.window)
    pages = cache(len(paging.read), size, kv_heads, *scene.widths)
    how: dict[str, Any] = {} if garbage is None else {"garbage": garbage}
    operands: list[Any] = [normal(scene.tokens, heads, scene.widths[0], scale=scene.sharp)]
    operands += [KV(paging.filled(pages.k, **how), paging.filled(pages.v, **how), quantized)]
    operands += [starts([n for n, _ in scene.sequences]), ints([keys for _, keys in scene.sequences]), paging.table]
    scene.enter("paged_attention", note, *operands, tier=tier)


for _note, _scene in SCENES.items():
    _attend(_note, _scene)
for _size in BLOCKS:
    for _note, _scene in around(_size).items():
        _attend(f"B{_size} {_note}", _scene, _size)
for _note in ("mixture", "window", "everything"):
    _attend(f"int8 {_note}", SCENES[_note], quantized=True)
for _size in BLOCKS:
    _attend(f"int8 B{_size}", Scene([(3, 40), (1, 33), (2, 2)], heads=(6, 2), widths=(64, 48)), _size, quantized=True)
for _note in ("mixture", "window", "everything"):
    _attend(f"{_note} NaN around", SCENES[_note], garbage=np.nan)
_attend("one block each", Scene([(3, 40), (1, 33), (2, 2)]), 64)
_attend("decode of 4096", Scene([(1, 4096), (1, 4001)], heads=(8, 2), widths=(64, 64)), 16, tier=Tier.FULL)
_attend("prefill of 300", Scene([(300, 300)], heads=(4, 2), widths=(64, 64)), 16, tier=Tier.FULL)

_KEYS = cache(3, 4, 1, 8, 8)
case(
    "paged_attention",
    *(_ROWS, _KEYS, ints([0, 63]), ints([12]), ints([[2, 0, 1]])),
    label="special-queries",
    special=True,
    scale=0.3,
    causal=False,
)
_BIAS = np.where(rng("masks").random((3, 2, 7)) < 0.4, -np.inf, 0.0)
_BIAS[..., 0] = 0.0
case(
    "paged_attention",
    *(normal(3, 2, 8), _KEYS, ints([0, 3]), ints([7]), ints([[1, 2]]), None, floats(_BIAS)),
    label="masked-by-bias",
    scale=0.3,
)
