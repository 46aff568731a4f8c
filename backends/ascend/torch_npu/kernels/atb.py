"""Attention of Atlas inference cards by ATB: float16 over a cache in NZ order, with masks added to the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import float16
from xinheng.core.ir.graph import Node

from ...._torch.kernels import attention as plain
from ...._torch.kernels.registry import cache_type
from ...._torch.planner import Planner
from ..batches import Batch
from ..handles import TILE, TiledPagedKV
from .conditions import filled
from .tiled import tiled

if TYPE_CHECKING:
    from ..device import AscendDevice

Tensor = torch.Tensor
NZ = 29
"""The vendor's number of FRACTAL_NZ."""


def register_atb(kernels: KernelRegistry, device: AscendDevice) -> None:
    """Enter the kernel of generations that attend by ATB."""
    kernels.register(
        ops.paged_attention,
        name="npu_paged_attention",
        dtypes=[float16],
        when=_attendable,
        host=("query_start", "seq_lens"),
        priority=1,
    )(Planner(lambda node: ATBAttention(device, cache_type(node)["heads"], device.reads(node.results[1]))))


class ATBAttention:
    """One attention of a graph.

    ATB gives no log-sum-exps; where something reads them, plain torch computes them beside it.
    """

    def __init__(self, device: AscendDevice, kv_heads: int, wants_lse: bool) -> None:
        self._device, self._kv_heads, self._wants_lse = device, kv_heads, wants_lse

    def __call__(
        self,
        q: Tensor,
        cache: TiledPagedKV,
        query_start: NDArray[Any],
        seq_lens: NDArray[Any],
        block_table: Tensor,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        batch = self._device.batch(query_start, seq_lens, q.shape[0], window)
        if not batch.sequences.size:
            return plain.nothing(q, q.shape[-1])
        table = self._device.rows_of_table(block_table, batch)
        rows = self._device.rows_of_queries(q, batch)
        out = torch.empty_like(rows)
        lengths = self._device.placed(batch.lengths.astype(np.int32))
        common = {"num_kv_heads": self._kv_heads, "num_heads": q.shape[1], "scale_value": scale, "out": out}
        if batch.longest == 1 and (window is None or not bool((batch.lengths > window).any())):
            torch.ops.atb._npu_paged_attention(rows, *cache.whole, block_table=table, context_lens=lengths, **common)
        else:
            mask = self._device.remembered.get(
                "mask", (batch.counts, batch.lengths), (window, causal), lambda: self._mask(batch, window, causal)
            )
            counts = torch.from_numpy(batch.counts.astype(np.int32))
            torch.ops.atb._npu_paged_attention_splitfuse(
                rows, *cache.whole, block_table=table, context_lens=lengths, mask=mask, seq_len=counts, **common
            )
        lse = self._sums(rows, cache, batch, table, scale, window, causal) if self._wants_lse else None
        return self._device.spread(out, lse, batch)

    def _mask(self, batch: Batch, window: int | None, causal: bool) -> Tensor:
        """What is added to the logits of all rows and as many keys as the longest sequence has, rounded up to tiles."""
        first = batch.lengths - batch.counts
        place = np.concatenate([np.arange(a, a + n) for a, n in zip(first, batch.counts, strict=True)])[:, None]
        keys = np.arange(-(-int(batch.lengths.max()) // TILE) * TILE)
        return masked(self._device, hidden(place, keys, window, causal))

    def _sums(
        self,
        rows: Tensor,
        cache: TiledPagedKV,
        batch: Batch,
        table: Tensor,
        scale: float,
        window: int | None,
        causal: bool,
    ) -> Tensor:
        pages = cache.pages(table.reshape(-1).clamp(0, cache.whole[0].shape[0] - 1).long())
        fresh = torch.arange(table.numel(), dtype=torch.int32, device=table.device).reshape(table.shape)
        start = np.array([0, *batch.ends])
        return plain.paged_attention(
            rows, pages, start, batch.lengths, fresh, scale=scale, window=window, causal=causal
        )[1]


def hidden(place: NDArray[Any], keys: NDArray[Any], window: int | None, causal: bool = True) -> NDArray[np.bool_]:
    """Which keys [n] queries at positions [rows, 1] do not see, [rows, n]."""
    found: NDArray[np.bool_] = keys > place if causal else np.zeros((place.size, keys.size), bool)
    return found if window is None else found | (place - keys >= window)


def masked(device: AscendDevice, unseen: NDArray[np.bool_]) -> Tensor:
    """What is added to logits float16, -inf where a key is hidden, as ATB reads it: by tiles of columns, in NZ order.

    `unseen` [rows, keys], keys a multiple of 16, becomes [1, keys / 16, rows rounded up to 16, 16].
    """
    rows, keys = unseen.shape
    tiles = np.zeros((-(-rows // TILE) * TILE, keys // TILE, TILE), np.float16)
    tiles[:rows] = np.where(unseen, -np.inf, 0.0).reshape(rows, -1, TILE)
    made: Tensor = torch.ops.npu.npu_format_cast(device.placed(tiles.transpose(1, 0, 2)[None]), NZ)
    return made


def _attendable(node: Node) -> bool | str:
    if not tiled(cache_type(node)):
        return "is for caches in NZ order"
    if any(node.operand(name) is not None for name in ("sinks", "bias")) or node.attributes["softcap"] is not None:
        return "takes neither sinks, a bias nor a softcap"
    return filled(*node.operands) or "does not take empty tensors"
