"""How a model is spread over ranks: which heads, rows and columns of each layer a rank holds (Shoeybi et al. 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xinheng.core.errors import ModelError
from xinheng.core.hal.weight import WeightSource
from xinheng.core.schemes import scheme

GROUP = "tensor"
"""What the collectives in the graph of a shard call the ranks that share the model."""


@dataclass(frozen=True, slots=True)
class HeadRange:
    """The query heads start to stop of a layer, and the key-value heads kv_start to kv_stop that they read."""

    start: int
    stop: int
    kv_start: int
    kv_stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def kv_count(self) -> int:
        return self.kv_stop - self.kv_start


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a model that rank `rank` of `ranks` computes."""

    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ModelError(f"rank {self.rank} is not one of 0 to {self.ranks - 1}")

    def range(self, total: int, unit: int, what: str) -> tuple[int, int]:
        """This rank's run of `total` things, cut at multiples of `unit`, as even as that allows; longer ones first.

        Raises:
            ModelError: there are fewer units than ranks, or the total is not a whole number of them; it names `what`.
        """
        if total % unit or total // unit < self.ranks:
            raise ModelError(
                f"{what}: {total} in units of {unit} cannot be shared by {self.ranks} ranks; "
                f"set engine.tensor_parallel_size to {max(1, total // unit)} or less"
            )
        few, longer = divmod(total // unit, self.ranks)
        start = self.rank * few + min(self.rank, longer)
        return start * unit, (start + few + (self.rank < longer)) * unit

    def heads(self, heads: int, kv_heads: int, unit: int = 1) -> HeadRange:
        """This rank's query heads, cut at multiples of `unit`, with their key-value heads.

        Key-value heads are shared out whole; where they are fewer than the ranks, each is held by as many ranks as
        share its queries.

        Raises:
            ModelError: there is no such division.
        """
        group = heads // kv_heads
        if kv_heads >= self.ranks:
            start, stop = self.range(kv_heads, math.lcm(unit, group) // group, "key-value heads")
            return HeadRange(start * group, stop * group, start, stop)
        if self.ranks % kv_heads:
            raise ModelError(
                f"{kv_heads} key-value heads cannot be held by {self.ranks} ranks evenly; "
                f"set engine.tensor_parallel_size to {kv_heads} or less, or to a multiple of it"
            )
        sharers = self.ranks // kv_heads
        if group % unit or group // unit < sharers:
            raise ModelError(
                f"{group} query heads of a key-value head, in units of {unit}, cannot be shared by {sharers} ranks; "
                f"set engine.tensor_parallel_size to {kv_heads} or less"
            )
        held = self.rank // sharers
        start, stop = Shard(self.rank % sharers, sharers).range(group, unit, "query heads of a key-value head")
        return HeadRange(held * group + start, held * group + stop, held, held + 1)


WHOLE = Shard()
"""All of a model on one rank."""


def border(source: WeightSource) -> int:
    """The columns of a weight can be cut at multiples of this number."""
    return math.lcm(*(scheme(part.scheme).block for part in source.parts))


def head_unit(source: WeightSource, width: int) -> int:
    """Heads of `width` columns of a weight can be parted at multiples of this number."""
    return math.lcm(width, border(source)) // width
