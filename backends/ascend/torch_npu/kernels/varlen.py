"""Attention over keys that lie side by side (`sdpa_varlen`) on Atlas inference cards, by ATB.

Whole prompts go to `_npu_flash_attention`, which takes as many keys as queries, tokens in steps of 16 and one mask for
all sequences. Others, such as chunks behind a prefix, are attended over pages in NZ order that are made for the call.
"""

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
from ...._torch.planner import Planner
from ...chips import ATB_HEAD_LIMIT, BLOCK_SIZE
from ..batches import Batch
from ..handles import TILE, TiledPagedKV
from .atb import ATBAttention, hidden, masked
from .conditions import filled, shaped

if TYPE_CHECKING:
    from ..device import AscendDevice

Tensor = torch.Tensor
Lists = NDArray[Any]


def register_varlen(kernels: KernelRegistry, device: AscendDevice) -> None:
    """Enter the kernel of generations that attend by ATB."""
    kernels.register(
        ops.sdpa_varlen,
        name="npu_flash_attention",
        dtypes=[float16],
        when=_attendable,
        host=("query_start", "key_start"),
        priority=1,
    )(Planner(lambda node: VarlenAttention(device, node)))


class VarlenAttention:
    """One attention of a graph; where something reads log-sum-exps, plain torch computes them beside it."""

    def __init__(self, device: AscendDevice, node: Node) -> None:
        heads = shaped(node, "k")[1]
        assert isinstance(heads, int)
        self._device, self._heads, self._wants_lse = device, heads, device.reads(node.results[1])
        self._paged = ATBAttention(device, heads, self._wants_lse)

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_start: Lists,
        key_start: Lists,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        lengths = np.diff(key_start)
        batch = self._device.batch(query_start, lengths, q.shape[0])
        if not batch.sequences.size:
            return plain.nothing(q, v.shape[-1])
        if not causal or not np.array_equal(batch.counts, batch.lengths):
            pages, table = self._pages(k, v, key_start)
            return self._paged(q, pages, query_start, lengths, table, scale=scale, window=window, causal=causal)
        out = self._prompts(q, k, v, key_start, batch, scale, window)
        if not self._wants_lse:
            return self._device.spread(out, None, batch)
        _, lse = plain.sdpa_varlen(q, k, v, torch.from_numpy(query_start), torch.from_numpy(key_start),
                                   scale=scale, window=window)  # fmt: skip
        return self._device.spread(out, None, batch)[0], lse

    def _prompts(
        self, q: Tensor, k: Tensor, v: Tensor, key_start: Lists, batch: Batch, scale: float, window: int | None
    ) -> Tensor:
        """The results of whole prompts [rows, heads, width]; rows of padding belong to the last one, behind its own."""
        rows = [self._device.rows_of_queries(q, batch), *self._keys(k, v, key_start, batch)]
        total = batch.rows.size
        rest = -total % TILE
        queries, keys, values = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, rest)).contiguous() for x in rows)
        counts = batch.counts.astype(np.int32)
        counts[-1] += rest
        most = -(-int(counts.max()) // TILE) * TILE
        places = np.arange(most)
        mask = self._device.remembered.get(
            "prompts", (), (most, window), lambda: masked(self._device, hidden(places[:, None], places, window))
        )
        out = torch.empty_like(queries)
        torch.ops.atb._npu_flash_attention(
            queries, keys, values, mask, torch.from_numpy(counts), scale, q.shape[1], self._heads, out
        )
        return out[:total]

    def _keys(self, k: Tensor, v: Tensor, key_start: Lists, batch: Batch) -> tuple[Tensor, Tensor]:
        """The keys and values of the sequences of a batch, one after the other."""
        places = np.concatenate([np.arange(*key_start[s : s + 2]) for s in batch.sequences])
        if places[-1] == places.size - 1:
            return k[: places.size], v[: places.size]
        index = self._device.remembered.get("keys", (places,), (), lambda: self._device.placed(places))
        return k[index], v[index]

    def _pages(self, k: Tensor, v: Tensor, key_start: Lists) -> tuple[TiledPagedKV, Tensor]:
        """Keys and values in new pages in NZ order, and the block table int32 that names them."""
        lengths = np.diff(key_start).astype(np.int64)
        counts = -(-lengths // BLOCK_SIZE)
        first = np.cumsum(counts) - counts
        shape = (int(counts.sum()) + 1, self._heads * k.shape[2] // TILE, BLOCK_SIZE, TILE)
        memory = tuple(torch.zeros(shape, dtype=k.dtype, device=k.device) for _ in range(2))
        begins = key_start[:-1].astype(np.int64)
        taken = int(lengths.sum())
        slots = np.arange(taken) + np.repeat(first * BLOCK_SIZE - (begins - begins[0]), lengths)
        rows = (x[int(begins[0]) : int(begins[0]) + taken].contiguous() for x in (k, v))
        torch.ops.atb._npu_reshape_and_cache(*rows, *memory, self._device.placed(slots.astype(np.int32)))
        columns = np.minimum(first[:, None] + np.arange(max(int(counts.max()), 1)), shape[0] - 1)
        return TiledPagedKV((memory[0], memory[1]), self._heads), self._device.placed(columns.astype(np.int32))


def _attendable(node: Node) -> bool | str:
    if any(node.operand(name) is not None for name in ("sinks", "bias")) or node.attributes["softcap"] is not None:
        return "takes neither sinks, a bias nor a softcap"
    width, values = shaped(node, "k")[2], shaped(node, "v")[2]
    if width != values or not isinstance(width, int) or width % TILE or not 0 < width <= ATB_HEAD_LIMIT:
        return f"takes keys and values of one width, a multiple of {TILE} up to {ATB_HEAD_LIMIT}"
    return filled(*node.operands) or "does not take empty tensors"
