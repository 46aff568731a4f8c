"""A paged cache of a simulated device: the parts of its state type, each in the device's layout."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError
from xinheng.core.hal import StateSpace
from xinheng.core.ir.dtype import cast_to, dtype
from xinheng.core.ir.types import StateType
from xinheng.core.ops import KVPages, LatentPages

from .cache_layouts import CacheLayout


class SimCache:
    """Memory of one `paged_kv` or `paged_latent` state."""

    def __init__(self, type: StateType, space: StateSpace, layout: type[CacheLayout]) -> None:
        self.kind, self.space, self.latent = dtype(type["scheme"]), space, type.kind == "paged_latent"
        heads = 1 if self.latent else int(type["heads"])
        widths = ("dim", "rope_dim") if self.latent else ("k_dim", "v_dim")
        self.parts = [
            layout(space.blocks, space.block_size, heads, int(type[width]), self.kind.numpy) for width in widths
        ]

    @property
    def nbytes(self) -> int:
        return sum(part.data.nbytes for part in self.parts)

    def write(self, slots: NDArray[Any], *values: NDArray[Any]) -> None:
        """Store one row of each part per slot; slot -1 writes nothing."""
        valid = np.flatnonzero(slots >= 0)
        block, offset = np.divmod(slots[valid].astype(np.intp), self.space.block_size)
        for part, new in zip(self.parts, values, strict=True):
            rows = cast_to(new[valid].astype(np.float64), self.kind)
            part.write(block, offset, rows[:, None] if self.latent else rows)

    def pages(self, table: NDArray[Any]) -> tuple[KVPages | LatentPages, NDArray[np.intp]]:
        """The blocks that a table names, and the table in their numbering. Other entries point to a page of NaN.

        Raises:
            DeviceError: a sequence has several blocks where the layout is not paged.
        """
        if not self.parts[0].paged and table.shape[1] > 1:
            raise DeviceError(
                f"a cache of one region per sequence got a table of {table.shape[1]} blocks per sequence; allocate "
                "blocks as long as the longest sequence"
            )
        there = (table >= 0) & (table < self.space.blocks)
        used = np.unique(table[there]).astype(np.intp)
        index = np.full(self.space.blocks, -1)
        index[used] = np.arange(used.size)
        read = [self._poisoned(part.read(used)) for part in self.parts]
        pages = LatentPages(*(x[..., 0, :] for x in read)) if self.latent else KVPages(*read)
        return pages, np.where(there, index[np.where(there, table, 0)], -1)

    def whole(self) -> KVPages | LatentPages:
        """A copy of all blocks as references see them."""
        read = [np.array(part.read(np.arange(self.space.blocks))) for part in self.parts]
        return LatentPages(*(x[..., 0, :] for x in read)) if self.latent else KVPages(*read)

    def replaced(self, pages: tuple[NDArray[Any], ...]) -> SimCache:
        """This cache after all its blocks were overwritten."""
        block, offset = np.divmod(np.arange(self.space.blocks * self.space.block_size), self.space.block_size)
        for part, new in zip(self.parts, pages, strict=True):
            rows = np.asarray(new).reshape(-1, *new.shape[2:])
            part.write(block, offset, rows[:, None] if self.latent else rows)
        return self

    def copy(self, pairs: NDArray[Any]) -> None:
        """Copy block pairs[i, 0] to block pairs[i, 1], all at once."""
        offsets = np.arange(self.space.block_size)
        for part in self.parts:
            values = part.read(pairs[:, 0].astype(np.intp))
            block = np.repeat(pairs[:, 1].astype(np.intp), self.space.block_size)
            part.write(block, np.tile(offsets, len(pairs)), values.reshape(-1, *values.shape[2:]))

    def _poisoned(self, blocks: NDArray[Any]) -> NDArray[Any]:
        """Blocks with one more of NaN, so that reading a freed block shows."""
        poison = np.full((1, *blocks.shape[1:]), np.nan, blocks.dtype)
        return np.concatenate([blocks, poison])
