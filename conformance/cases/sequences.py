"""Sequences that attention stumbles over, and their keys in blocks of a cache with garbage around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..case import Tier, case
from ..draw import MODERATE, USUAL
from ..operands import T, gain, ints, rng

Sequences = Sequence[tuple[int, int]]
"""How many queries, the last positions, and how many keys each sequence has."""

GARBAGE = 1e4
"""What stands where nobody may read; not so much that a product of it with a small weight is infinite."""


@dataclass(frozen=True)
class Scene:
    """Sequences and how they attend.

    Attributes:
        heads: those of queries and of keys.
        widths: those of keys and of values.
        unused: rows of queries behind the last sequence.
        sharp: scale of the queries.
        data: the distributions it runs in.
        seeds: as in `case`.
    """

    sequences: Sequences
    heads: tuple[int, int] = (4, 2)
    widths: tuple[int, int] = (8, 8)
    unused: int = 0
    sharp: float = 2.0
    sinks: bool = False
    bias: bool = False
    window: int | None = None
    softcap: float | None = None
    causal: bool = True
    data: Sequence[str] = USUAL
    seeds: tuple[int, int] = (1, 4)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of attention ops, those with their usual values left out."""
        given = {"window": self.window, "softcap": self.softcap, "causal": self.causal}
        usual = {"window": None, "softcap": None, "causal": True}
        return {"scale": self.widths[0] ** -0.5, **{n: x for n, x in given.items() if x != usual[n]}}

    @property
    def tokens(self) -> int:
        return sum(queries for queries, _ in self.sequences) + self.unused

    @property
    def longest(self) -> int:
        return max((keys for _, keys in self.sequences), default=0)

    def enter(self, op: str, note: str, *operands: Any, tier: Tier = Tier.DEFAULT) -> None:
        """Enter a case of an attention op: `operands`, then the sinks and the bias that there are."""
        sinks = gain(self.heads[0]) if self.sinks else None
        bias = gain(self.tokens, self.heads[0], self.longest, shift=0.0) if self.bias else None
        spread: dict[str, Any] = {"data": self.data, "seeds": self.seeds, "tier": tier}
        case(op, *operands, sinks, bias, label=note.replace(" ", "-"), **spread, **self.attributes)


@dataclass(frozen=True)
class Paging:
    """Where the keys of sequences are: `read` [blocks, size] says which slots belong to them."""

    table: T
    read: NDArray[np.bool_]

    def filled(self, x: NDArray[Any], garbage: float = GARBAGE) -> NDArray[Any]:
        """Pages of x [blocks, size, ...] with garbage in the slots that nobody may read."""
        return np.where(np.reshape(self.read, self.read.shape + (1,) * (x.ndim - 2)), x, garbage)


def starts(counts: Sequence[int]) -> T:
    """Where rows of sequences begin and end."""
    return ints(np.cumsum([0, *counts]))


def paged(note: str, sequences: Sequences, size: int, window: int | None = None) -> Paging:
    """Blocks dealt out in random order; entries of the table that no query needs name no block, or one of another."""
    blocks = sum(-(-keys // size) for _, keys in sequences) + 2
    free = list(rng("blocks", note).permutation(blocks))
    wide = max((-(-keys // size) for _, keys in sequences), default=0) + 1
    table, read = np.full((len(sequences), wide), -1), np.zeros((blocks, size), bool)
    for s, (queries, keys) in enumerate(sequences):
        first = max(0, keys - queries - window + 1) // size if window else 0
        for position in range(first * size, keys):
            block = position // size
            if table[s, block] < 0:
                table[s, block] = free.pop()
            read[table[s, block], position % size] = True
        table[s, :first] = (-1, 10**6, 0)[s % 3]
        table[s, -(-keys // size) :] = (10**6, 0, -1)[s % 3]
    return Paging(ints(table), read)


def _beside(size: int) -> Sequences:
    """Decoding with lengths around the border of a block."""
    return [(1, 1), (1, size - 1), (1, size), (1, size + 1), (1, 2 * size), (1, 3 * size + 5)]


def around(size: int) -> dict[str, Scene]:
    """Scenes for caches of some block size."""
    return {
        "decode": Scene(_beside(size), data=("normal", "uniform")),
        "chunks": Scene([(3, size + 1), (size + 1, size + 1), (size, 3 * size), (2, size - 1)]),
        "window": Scene([*_beside(size), (5, 2 * size + 3)], window=size + 1),
        "window of a block": Scene([*_beside(size), (size, 2 * size)], window=size),
        "everything": Scene(
            [*_beside(size), (4, size + 2)], window=size - 1, softcap=3.0, sharp=4.0, sinks=True, bias=True, unused=1
        ),
    }


SCENES: dict[str, Scene] = {
    "prefill": Scene([(5, 5), (3, 3)], data=MODERATE, seeds=(2, 8)),
    "decode": Scene([(1, 9), (1, 1), (1, 4)], data=MODERATE, seeds=(2, 8)),
    "mixture": Scene([(4, 10), (1, 7), (6, 6)], data=MODERATE, seeds=(2, 8)),
    "one head": Scene([(3, 3)], heads=(1, 1), widths=(5, 3)),
    "wide values": Scene([(3, 9), (1, 5)], widths=(8, 20)),
    "wide keys": Scene([(3, 9), (1, 5)], widths=(24, 16)),
    "odd widths": Scene([(3, 9), (1, 5)], widths=(33, 17)),
    "head of 64": Scene([(3, 19), (1, 40)], heads=(6, 3), widths=(64, 64), data=("normal", "outliers")),
    "head of 128": Scene([(2, 19), (1, 40)], heads=(4, 1), widths=(128, 128), data=("normal", "outliers")),
    "head of 256": Scene([(2, 19), (1, 40)], heads=(2, 1), widths=(256, 256)),
    **{
        f"{heads} heads on {kv}": Scene([(3, 21), (1, 33), (2, 2)], heads=(heads, kv), data=("normal", "uniform"))
        for heads, kv in ((3, 3), (2, 1), (6, 2), (9, 3), (8, 2), (8, 1), (16, 2), (14, 2))
    },
    "window": Scene([(4, 12), (1, 9), (2, 2)], window=3, data=("normal", "uniform"), seeds=(2, 8)),
    "window wider": Scene([(2, 5)], window=100),
    **{f"window of {w}": Scene([(4, 40), (1, 33), (20, 20), (1, w)], window=w) for w in (1, 2, 16, 17, 32)},
    "window late": Scene([(1, 700), (3, 600)], heads=(2, 1), window=64, data=("normal", "tiny")),
    "window late narrow": Scene([(1, 515), (2, 1030)], heads=(2, 1), window=3),
    "window of 512": Scene([(1, 513), (1, 512), (2, 514), (1, 1025)], heads=(2, 2), window=512),
    "window of 520": Scene([(1, 700), (2, 530), (3, 521)], heads=(4, 2), window=520, data=("normal", "tiny")),
    "long": Scene([(2, 70), (1, 129)], heads=(2, 1), widths=(16, 16)),
    "longer": Scene([(1, 600), (2, 1030)], heads=(3, 1), widths=(16, 16), data=("normal", "tiny")),
    "softcap": Scene([(3, 7)], softcap=5.0),
    **{
        f"softcap {cap:g}": Scene([(6, 6), (3, 9), (1, 20)], softcap=cap, sharp=sharp, data=("normal", "uniform"))
        for cap, sharp in ((1.0, 2.0), (2.0, 6.0), (5.0, 8.0), (30.0, 20.0), (50.0, 30.0))
    },
    "softcap and window": Scene([(6, 6), (3, 9), (1, 20)], softcap=2.0, sharp=6.0, window=4),
    "softcap not causal": Scene([(6, 6), (3, 9)], softcap=2.0, sharp=6.0, causal=False),
    "sinks": Scene([(3, 7), (1, 2)], sinks=True, data=("normal", "uniform"), seeds=(2, 8)),
    "sinks and window": Scene([(3, 40), (1, 20), (1, 1)], sinks=True, window=4),
    "bias": Scene([(3, 7), (1, 2)], bias=True, data=("normal", "uniform"), seeds=(2, 8)),
    "bias and window": Scene([(3, 40), (1, 20)], bias=True, window=6),
    "bias and softcap": Scene([(3, 7), (1, 20)], bias=True, softcap=2.0, sharp=6.0),
    "everything": Scene([(3, 11), (1, 6)], sinks=True, bias=True, window=4, softcap=20.0),
    "not causal": Scene([(3, 7), (2, 2)], causal=False),
    "not causal window": Scene([(3, 7)], causal=False, window=2),
    "unused rows": Scene([(2, 4), (1, 3)], unused=3),
    "empty sequences": Scene([(0, 5), (2, 0), (1, 2), (0, 0)], sinks=True),
    "more queries than keys": Scene([(4, 2)]),
    "no sequences": Scene([], unused=2),
    "no tokens": Scene([(0, 3)]),
    "many sequences": Scene([(1, 1 + 5 * i % 37) for i in range(33)], heads=(2, 1)),
}
"""Scenes by what they are about."""
