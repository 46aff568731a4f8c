"""A paged cache of a simulated device: the parts of its state type, each in the device's layout."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError
from xinheng.core.hal import StateSpace
from xinheng.core.ir.dtype import cast_to
from xinheng.core.ir.types import StateType
from xinheng.core.ops import state_of
from xinheng.core.ops.attention import quantized
from xinheng.core.ops.states import Held

from .cache_layouts import CacheLayout


class SimCache:
    """Memory of one `paged_kv` or `paged_latent` state."""

    def __init__(self, type: StateType, space: StateSpace, layout: type[CacheLayout]) -> None:
        self.type, self.space = type, space
        self.parts = []
        for part in type.parts:
            heads, width = (1, *part.shape)[-2:]  # what has no heads of its own has one
            self.parts.append(layout(space.blocks, space.block_size, heads, width, part.dtype.numpy))

    @property
    def nbytes(self) -> int:
        return sum(part.data.nbytes for part in self.parts)

    def write(self, slots: NDArray[Any], *values: NDArray[Any]) -> None:
        """Store one row of each part per slot; slot -1 writes nothing."""
        valid = np.flatnonzero(slots >= 0)
        block, offset = np.divmod(slots[valid].astype(np.intp), self.space.block_size)
        new = quantized(*(x.astype(np.float64) for x in values)) if self.type.quantized else values
        for part, kind, rows in zip(self.parts, self.type.parts, new, strict=True):
            kept = cast_to(np.asarray(rows)[valid].astype(np.float64), kind.dtype)
            part.write(block, offset, kept.reshape(valid.size, *part.sizes[2:]))

    def pages(self, table: NDArray[Any]) -> tuple[Held, NDArray[np.intp]]:
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
        return self._shown(read), np.where(there, index[np.where(there, table, 0)], -1)

    def whole(self) -> Held:
        """A copy of all blocks as references see them."""
        read = [np.array(part.read(np.arange(self.space.blocks))) for part in self.parts]
        return self._shown(read)

    def _shown(self, read: list[NDArray[Any]]) -> Held:
        """Blocks of the parts as references see them."""
        kinds = zip(read, self.type.parts, strict=True)
        return state_of(self.type, [x.reshape(*x.shape[:2], *kind.shape) for x, kind in kinds])

    def replaced(self, pages: tuple[NDArray[Any], ...]) -> SimCache:
        """This cache after all its blocks were overwritten."""
        block, offset = np.divmod(np.arange(self.space.blocks * self.space.block_size), self.space.block_size)
        for part, new in zip(self.parts, pages, strict=True):
            part.write(block, offset, np.asarray(new).reshape(-1, *part.sizes[2:]))
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
        poison = np.full((1, *blocks.shape[1:]), 0 if blocks.dtype.kind == "i" else np.nan, blocks.dtype)
        return np.concatenate([blocks, poison])
