"""The caches and weights of an Ascend device, in the layouts that the vendor's operators read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..._torch.handles import TorchPagedKV, TorchPagedLatent, TorchWeight

Tensor = torch.Tensor
TILE = 16
"""Numbers of a tile of FRACTAL_NZ along its inner axis."""


@dataclass(frozen=True)
class NPUPagedKV(TorchPagedKV):
    """A paged cache with one block more than the engine knows of, where tokens without a slot are written.

    The operator that writes has no slot that means nothing; `k` and `v` are the blocks in front of the spare one.
    """

    whole: tuple[Tensor, Tensor]

    @staticmethod
    def of(k: Tensor, v: Tensor) -> NPUPagedKV:
        """A cache in memory [blocks + 1, block_size, heads, width]."""
        return NPUPagedKV(k[:-1], v[:-1], (k, v))


@dataclass(frozen=True)
class NPUPagedLatent(TorchPagedLatent):
    """A paged latent cache with a spare block, like `NPUPagedKV`."""

    whole: tuple[Tensor, Tensor]

    @staticmethod
    def of(latent: Tensor, rope: Tensor) -> NPUPagedLatent:
        """A cache in memory [blocks + 1, block_size, width]."""
        return NPUPagedLatent(latent[:-1], rope[:-1], (latent, rope))


@dataclass(frozen=True, slots=True)
class TiledPagedKV:
    """A paged cache in NZ order, with a spare block: keys and values [blocks + 1, heads * width / 16, size, 16]."""

    whole: tuple[Tensor, Tensor]
    heads: int

    def pages(self, blocks: Tensor) -> TorchPagedKV:
        """A copy of some blocks [n, block_size, heads, width], in the order of tokens."""
        return TorchPagedKV(*(self._untiled(memory[blocks]) for memory in self.whole))

    def every(self) -> TorchPagedKV:
        """A copy of all blocks but the spare one."""
        return TorchPagedKV(*(self._untiled(memory[:-1]) for memory in self.whole))

    def _untiled(self, memory: Tensor) -> Tensor:
        size = memory.shape[2]
        return memory.permute(0, 2, 1, 3).reshape(memory.shape[0], size, self.heads, -1)

    def overwrite(self, k: Tensor, v: Tensor) -> None:
        """Set all blocks but the spare one to pages [blocks, block_size, heads, width]."""
        for memory, pages in zip(self.whole, (k, v), strict=True):
            flat = pages.reshape(*pages.shape[:2], memory.shape[1], TILE)
            memory[:-1].copy_(flat.permute(0, 2, 1, 3))


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Some rows of a quantised weight as `npu_weight_quant_batchmatmul` reads them, transposed.

    codes: int8 [columns, rows], or int32 [columns, rows / 8] with eight 4-bit codes each.
    scale, offset: [groups, rows] of the dtype of activations; a value is (code + offset) * scale.
    group: columns that share a scale; 0 where all do.
    """

    codes: Tensor
    scale: Tensor
    offset: Tensor | None
    group: int

    @property
    def nbytes(self) -> int:
        held = (self.codes, self.scale, self.offset)
        return sum(x.numel() * x.element_size() for x in held if x is not None)


@dataclass(frozen=True)
class NPUWeight(TorchWeight):
    """A weight with, besides or instead of its packed rows, rows that the fused product reads."""

    fused: tuple[GroupedRows, ...] = ()

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(rows.nbytes for rows in self.fused)
