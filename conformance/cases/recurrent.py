"""Cases of ops with a memory per sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xinheng.core.ir.dtype import float32

from ..case import Tier, case
from ..draw import USUAL
from ..operands import F, Slots, Special, T, bools, ints, normal, rng, special_rows
from .sequences import starts

_SLOTS = 6
_QUIET = ("normal", "uniform", "tiny")
"""Data of which no term drowns the others: a channel has only a few."""


def _both(
    note: str,
    counts: Sequence[int],
    slots: Sequence[int],
    fresh: Sequence[bool],
    *,
    unused: int = 0,
    narrow: bool = False,
    activation: str | None = "silu",
    channels: int = 5,
    width: int = 4,
    heads: int = 2,
    dims: tuple[int, int] = (4, 3),
    data: Sequence[str] = USUAL,
    tier: Tier = Tier.DEFAULT,
) -> None:
    """A convolution and a delta rule over sequences of so many tokens, with states in six slots."""
    tokens, sequences = sum(counts) + unused, (starts(counts), ints(slots), bools(fresh))
    made, kept = rng("recurrent", note), None if narrow else float32
    how: dict[str, Any] = {"label": note.replace(" ", "-"), "tier": tier}
    bias = None if activation is None else normal(channels)
    past = Slots(made.normal(size=(_SLOTS, channels, width - 1)), kept)
    x = normal(tokens, channels)
    case("causal_conv1d", x, past, normal(channels, width), *sequences, bias, activation=activation, data=data, **how)
    q, k = (made.normal(size=(tokens, heads, dims[0])) for _ in range(2))
    q, k = (x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True)) for x in (q, k))
    gate, beta = T(-made.uniform(0, 2, (tokens, heads)), float32), T(made.uniform(0.1, 1, (tokens, heads)), float32)
    memory = Slots(made.normal(size=(_SLOTS, heads, *dims)), kept)
    value = normal(tokens, heads, dims[1])
    case("gated_delta_rule", F(q), F(k), value, gate, beta, memory, *sequences, data=data, **how)


_both("decode", [1, 1, 1], [4, 0, 2], [False, False, True], data=_QUIET)
_both("prefill", [5, 2], [1, 3], [True, True], data=_QUIET)
_both("continued", [4, 1, 7], [5, 1, 0], [False, False, False], activation=None)
_both("narrow state", [3, 1], [2, 0], [False, True], narrow=True)
_both("no slot", [2, 3], [-1, 1], [False, False])
_both("no rows", [0, 2, 0], [3, 1, 2], [False, False, True])
_both("unused rows", [2], [0], [False], unused=3)
_both("nothing", [], [], [])
_both("short steps", [1, 2, 3], [0, 1, 2], [True, False, True])
_both("last slot", [2, 1], [5, 0], [False, False])
_both("width of two", [3, 1], [1, 0], [False, False], width=2)
_both("width of three", [3, 1], [1, 0], [False, True], width=3, activation=None)
for _channels, _dims in ((1, (1, 1)), (33, (8, 5)), (64, (16, 16)), (129, (33, 17))):
    _both(f"C{_channels}", [3, 1], [1, 4], [False, False], channels=_channels, heads=3, dims=_dims)
_both("one head", [3, 2], [1, 4], [False, True], heads=1, dims=(16, 32))
_both("long", [40, 1], [3, 5], [True, False], heads=1, dims=(8, 8))
_ALONE = starts([1] * 63), ints(range(63)), bools([False] * 63)  # a sequence of one token for each row
_PAST, _MEMORY = (Slots(rng("alone", *shape).normal(size=(63, *shape)), float32) for shape in ((5, 3), (1, 4, 5)))
_UNIT = np.full((63, 1, 4), 0.5)
_VALUES = Special(lambda s: np.reshape(special_rows(5).layout(s), (63, 1, 5)))
_PACE = T(np.full((63, 1), -0.5), float32), T(np.full((63, 1), 0.25), float32)
case("causal_conv1d", special_rows(5), _PAST, normal(5, 4), *_ALONE, label="specials", special=True)
case("gated_delta_rule", F(_UNIT), F(_UNIT), _VALUES, *_PACE, _MEMORY, *_ALONE, label="specials", special=True)
_both("wide", [60, 3], [3, 5], [True, False], channels=256, heads=8, dims=(64, 64), tier=Tier.FULL)
