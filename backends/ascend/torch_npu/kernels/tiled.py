"""The ops of a cache in NZ order: writing, gathering and copying blocks."""

from __future__ import annotations

from typing import Any

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import float16
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import StateType

from ...._torch.handles import TorchPagedKV
from ...._torch.kernels import attention as plain
from ...._torch.kernels.elementwise import cast
from ...._torch.kernels.registry import cache_type
from ...chips import ATB_HEAD_LIMIT
from ..handles import TILE, TiledPagedKV
from .cache import placed
from .conditions import FLOATS

Tensor = torch.Tensor


def tiled(cache: StateType) -> bool:
    """Whether a cache lies in NZ order: the layout of float16 keys and values that ATB attends over."""
    if cache.kind != "paged_kv" or cache["scheme"] != "float16":
        return False
    width = cache["k_dim"]
    return bool(width == cache["v_dim"] and width <= ATB_HEAD_LIMIT and width % TILE == 0)


def register_tiled(kernels: KernelRegistry) -> None:
    """Enter the kernels of generations whose cache lies in NZ order."""

    @kernels.register(ops.write_cache, name="npu_reshape_and_cache", dtypes=FLOATS, when=_tiled)
    def write_cache(cache: TiledPagedKV, k: Tensor, v: Tensor, slots: Tensor) -> TiledPagedKV:
        if k.shape[0]:
            rows = (cast(x, dtype=float16).contiguous() for x in (k, v))
            places = placed(slots, cache.whole[0], cache.whole[0].shape[2])
            torch.ops.atb._npu_reshape_and_cache(*rows, *cache.whole, places)
        return cache

    @kernels.register(ops.gather_kv_cache, name="torch_gather_tiled", when=_tiled)
    def gather_kv_cache(cache: TiledPagedKV, seq_lens: Tensor, block_table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        blocks = cache.whole[0].shape[0] - 1
        there = (block_table >= 0) & (block_table < blocks)
        pages, table = _dealt(cache, torch.where(there, block_table, 0))
        return plain.gather_kv_cache(pages, seq_lens, torch.where(there, table, -1))

    @kernels.register(ops.copy_blocks, name="torch_copy_blocks_tiled", when=_tiled)
    def copy_blocks(cache: TiledPagedKV, pairs: Tensor) -> TiledPagedKV:
        source, target = pairs.long().unbind(-1)
        for memory in cache.whole:
            memory[target] = memory[source]
        return cache

    @kernels.register(
        ops.paged_attention, name="torch_tiled_attention", dtypes=FLOATS, when=_tiled, host=("query_start", "seq_lens")
    )
    def paged_attention(
        q: Tensor,
        cache: TiledPagedKV,
        query_start: Any,
        seq_lens: Any,
        block_table: Tensor,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
    ) -> tuple[Tensor, Tensor]:
        pages, table = _dealt(cache, block_table.clamp(0, cache.whole[0].shape[0] - 1))
        return plain.paged_attention(
            q, pages, query_start, seq_lens, table, sinks, bias,
            scale=scale, window=window, softcap=softcap, causal=causal,
        )  # fmt: skip


def _dealt(cache: TiledPagedKV, table: Tensor) -> tuple[TorchPagedKV, Tensor]:
    """The blocks of a table in the order of tokens, and the table that names them there."""
    fresh = torch.arange(table.numel(), dtype=table.dtype, device=table.device).reshape(table.shape)
    return cache.pages(table.reshape(-1).long()), fresh


def _tiled(node: Node) -> bool | str:
    return tiled(cache_type(node)) or "is for caches in NZ order"
