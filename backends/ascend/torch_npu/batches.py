"""What the host lists of a batch mean for the vendor's attention operators.

Their lists know no rows without keys, so rows that see none are left out of a call and filled in afterwards.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..chips import BLOCK_SIZE

T = TypeVar("T")
KEPT = 8
"""How many batches a memory keeps: a step attends once per layer, and only some kinds of layers differ."""


@dataclass(frozen=True)
class Batch:
    """The sequences of a batch that have both queries and keys.

    Attributes:
        tokens: rows of the queries, whether they belong to a sequence or not.
        rows: which of them see a key, ascending.
        sequences: which sequences they belong to, ascending.
        counts: how many of the rows each of these has.
        skipped: how many of its first blocks each of these does not read, as its window lies behind them.
        lengths: how many keys each of these has, without those of skipped blocks.
    """

    tokens: int
    rows: NDArray[np.int64]
    sequences: NDArray[np.int64]
    counts: NDArray[np.int64]
    skipped: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, query_start: NDArray[Any], seq_lens: NDArray[Any], tokens: int, window: int | None = None) -> Batch:
        """From `query_start` [seqs + 1] and `seq_lens` [seqs]; the last queries of a sequence are at its last keys."""
        start, lengths = query_start.astype(np.int64), seq_lens.astype(np.int64)
        counts = np.minimum(np.diff(start), lengths)
        kept = np.flatnonzero(counts > 0)
        pieces = [np.arange(start[s + 1] - counts[s], start[s + 1]) for s in kept]
        rows = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
        counts, lengths = counts[kept], lengths[kept]
        unseen = np.zeros_like(counts) if window is None else np.maximum(lengths - counts - window + 1, 0)
        skipped = unseen // BLOCK_SIZE
        return cls(tokens, rows, kept, counts, skipped, lengths - skipped * BLOCK_SIZE)

    @cached_property
    def leading(self) -> bool:
        """Whether the rows are the first ones, so that a view of the queries holds them."""
        return bool(self.rows.size == 0 or self.rows[-1] == self.rows.size - 1)

    @cached_property
    def longest(self) -> int:
        """The most queries of a sequence."""
        return int(self.counts.max(initial=0))

    @cached_property
    def ends(self) -> list[int]:
        """Running sums of the queries, without a leading 0."""
        return [int(end) for end in np.cumsum(self.counts)]

    def divided(self, most: int) -> Batch:
        """The same rows as sequences of at most `most` queries: each sees the keys up to its last query."""
        if self.longest <= most:
            return self
        sequences, counts, skipped, lengths = [], [], [], []
        each = zip(self.sequences, self.counts, self.skipped, self.lengths, strict=True)
        for sequence, count, skip, length in each:
            for begin in range(0, count, most):
                taken = min(most, count - begin)
                sequences.append(sequence)
                counts.append(taken)
                skipped.append(skip)
                lengths.append(length - count + begin + taken)
        return Batch(self.tokens, self.rows, *(np.array(x, np.int64) for x in (sequences, counts, skipped, lengths)))


class Remembered:
    """Things made of the host lists of a step, which all layers of the step share; found again by their contents."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def get(self, what: str, arrays: tuple[NDArray[Any], ...], numbers: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What `make` made when it was last asked for the same, or makes now."""
        key = (what, *(array.tobytes() for array in arrays), *numbers)
        if key not in self._made:
            self._made[key] = make()
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        found: T = self._made[key]
        return found
