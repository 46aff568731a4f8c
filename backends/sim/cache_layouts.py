"""How simulated devices lay out one part of a paged cache, such as its keys; nobody but the device needs to know.

Each layout stores [blocks, block_size, heads, dim] in its own order; a latent, which has no heads, has one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError

Array = NDArray[Any]
Index = NDArray[np.intp]

TILE = 16
"""Rows and columns of a tile of the fractal layout."""


class CacheLayout(ABC):
    """Zeroed memory of one part of a cache."""

    paged = True
    """Whether a sequence may have several blocks."""
    data: Array

    def __init__(self, blocks: int, block_size: int, heads: int, dim: int, dtype: np.dtype[Any]) -> None:
        self.sizes = (blocks, block_size, heads, dim)

    @abstractmethod
    def write(self, block: Index, offset: Index, values: Array) -> None:
        """Store values [n, heads, dim] at offset [n] of block [n]."""

    @abstractmethod
    def read(self, blocks: Index) -> Array:
        """Copy whole blocks [n] as [n, block_size, heads, dim]."""


class AsDeclared(CacheLayout):
    """[blocks, block_size, heads, dim], as references see it."""

    def __init__(self, blocks: int, block_size: int, heads: int, dim: int, dtype: np.dtype[Any]) -> None:
        super().__init__(blocks, block_size, heads, dim, dtype)
        self.data = np.zeros(self.sizes, dtype)

    def write(self, block: Index, offset: Index, values: Array) -> None:
        self.data[block, offset] = values

    def read(self, blocks: Index) -> Array:
        made: Array = self.data[blocks]
        return made


class HeadsFirst(CacheLayout):
    """[heads, blocks, block_size, dim]."""

    def __init__(self, blocks: int, block_size: int, heads: int, dim: int, dtype: np.dtype[Any]) -> None:
        super().__init__(blocks, block_size, heads, dim, dtype)
        self.data = np.zeros((heads, blocks, block_size, dim), dtype)

    def write(self, block: Index, offset: Index, values: Array) -> None:
        self.data[:, block, offset] = np.swapaxes(values, 0, 1)

    def read(self, blocks: Index) -> Array:
        return np.moveaxis(self.data[:, blocks], 0, 2)


class Fractal(CacheLayout):
    """[blocks, columns / 16, block_size / 16, 16, 16] with columns = heads * dim rounded up: tiles column by column."""

    def __init__(self, blocks: int, block_size: int, heads: int, dim: int, dtype: np.dtype[Any]) -> None:
        super().__init__(blocks, block_size, heads, dim, dtype)
        if block_size % TILE:
            raise DeviceError(f"blocks of {block_size} tokens do not fill tiles of {TILE}; use a multiple of {TILE}")
        self.data = np.zeros((blocks, -(-heads * dim // TILE), block_size // TILE, TILE, TILE), dtype)

    def write(self, block: Index, offset: Index, values: Array) -> None:
        count, columns = len(values), values.shape[1] * values.shape[2]
        rows = np.zeros((count, self.data.shape[1] * TILE), values.dtype)
        rows[:, :columns] = values.reshape(count, columns)
        self.data[block, :, offset // TILE, offset % TILE] = rows.reshape(count, self.data.shape[1], TILE)

    def read(self, blocks: Index) -> Array:
        _, block_size, heads, dim = self.sizes
        rows = np.moveaxis(self.data[blocks], 1, 3).reshape(len(blocks), block_size, self.data.shape[1] * TILE)
        return rows[..., : heads * dim].reshape(len(blocks), block_size, heads, dim)


class Contiguous(CacheLayout):
    """[sequences, heads, dim, length]: one block per sequence, as long as the longest sequence may be."""

    paged = False

    def __init__(self, blocks: int, block_size: int, heads: int, dim: int, dtype: np.dtype[Any]) -> None:
        super().__init__(blocks, block_size, heads, dim, dtype)
        self.data = np.zeros((blocks, heads, dim, block_size), dtype)

    def write(self, block: Index, offset: Index, values: Array) -> None:
        self.data[block, :, :, offset] = values

    def read(self, blocks: Index) -> Array:
        return np.moveaxis(self.data[blocks], 3, 1)
