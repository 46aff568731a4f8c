"""Attention over the paged cache by `npu_fused_infer_attention_score` and its second version, which knows sinks.

Queries lie in TND order, one after the other; the cache is [blocks, 128, heads * width]. Lengths are lists of the host:
running sums of queries, and the keys of each sequence. A mask bit of 1 hides a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import bfloat16
from xinheng.core.ir.graph import Node

from ...._torch.kernels.attention import nothing
from ...._torch.kernels.registry import cache_type
from ...._torch.planner import Planner
from ...chips import BLOCK_SIZE, HEAD_LIMIT
from ..batches import Batch
from ..handles import NPUPagedKV
from ..host_lists import RowLists
from ..version import FIRST, SECOND
from .captured import Renewal
from .conditions import HALVES, filled, shaped

if TYPE_CHECKING:
    from ..device import AscendDevice

Tensor = torch.Tensor
COMPRESSED = 2048
"""The size of the one causal mask that stands for all sizes."""
FAR = 2147483647
HEADS, SHARING, ROW = 256, 64, 65535
"""The most heads, heads per key head, and numbers in a row of the cache."""
SINK_WIDTH = 128
"""The widest values beside sinks."""
CAUSAL, BAND = 3, 4
"""Sparse modes: causal with the last query at the last key, and the same with a window."""


def register_attention(kernels: KernelRegistry, device: AscendDevice) -> None:
    """Enter the kernels of generations with fused attention."""
    for version, sinks in ((FIRST, False), (SECOND, True)):
        kernels.register(
            ops.paged_attention,
            name=version.name,
            dtypes=[bfloat16] if sinks else HALVES,
            when=_with_sinks if sinks else _attendable,
            host=("query_start", "seq_lens"),
        )(Planner(lambda node: attention_of(device, node)))


def attention_of(device: AscendDevice, node: Node) -> FusedAttention:
    """The function of one node; graphs can capture one that is causal or has no window."""
    renewable = node.attributes["causal"] or node.attributes["window"] is None
    return (RenewableAttention if renewable else FusedAttention)(device, node)


class FusedAttention:
    """One attention of a graph, without log-sum-exps where nothing reads them."""

    def __init__(self, device: AscendDevice, node: Node) -> None:
        self._device, self._kv_heads, self._wants_lse = device, cache_type(node)["heads"], device.reads(node.results[1])
        self._version = FIRST if node.operand("sinks") is None else SECOND

    def __call__(
        self,
        q: Tensor,
        cache: NPUPagedKV,
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
            return nothing(q, q.shape[-1])
        memory = [x.reshape(*x.shape[:2], -1) for x in cache.whole]
        table = self._device.rows_of_table(block_table, batch)
        rows = self._device.rows_of_queries(q, batch)
        keys = [int(n) for n in batch.lengths]
        given = {"block_table": table, **self._given(q, scale, sinks)}
        if batch.longest == 1 and window is not None and bool((batch.lengths > window).any()):
            found = (window, table.shape[1])
            hidden = self._device.remembered.get("hidden", (batch.lengths,), found, lambda: self._hidden(batch, *found))
            given |= self._version.lists([1] * batch.sequences.size, keys)
            given |= {"input_layout": "BSND", "atten_mask": hidden}
            out, lse = self._version.operator()(rows[:, None], *memory, **given)
            out = out[:, 0]
        else:
            given |= self._version.lists(batch.ends, keys) | self._sparse(batch, window, causal)
            out, lse = self._version.operator()(rows, *memory, input_layout="TND", **given)
        return self._device.spread(out, lse.reshape(-1, q.shape[1]) if self._wants_lse else None, batch)

    def _given(self, q: Tensor, scale: float, sinks: Tensor | None) -> dict[str, Any]:
        """The keywords that do not depend on the lists."""
        version = self._version
        named = {version.heads: q.shape[1], version.scale: scale, version.sums: self._wants_lse}
        named |= {"num_key_value_heads": self._kv_heads, "block_size": BLOCK_SIZE}
        return named if sinks is None else named | {"learnable_sink": sinks}

    def _sparse(self, batch: Batch, window: int | None, causal: bool) -> dict[str, Any]:
        """The sparse mode. `pre_tokens` counts the keys before a query, itself not included."""
        if window is not None and batch.longest > 1:
            band = {"pre_tokens": window - 1, "next_tokens": 0 if causal else FAR}
            return {"sparse_mode": BAND, "atten_mask": self._device.causal_mask, **band}
        if causal and batch.longest > 1:
            return {"sparse_mode": CAUSAL, "atten_mask": self._device.causal_mask}
        return {}

    def _hidden(self, batch: Batch, window: int, blocks: int) -> Tensor:
        """The mask of single queries [sequences, 1, 1, keys]: sparse modes have no effect on them."""
        keys, lengths = np.arange(blocks * BLOCK_SIZE), batch.lengths[:, None]
        return self._device.placed((keys < lengths - window) | (keys >= lengths))[:, None, None]


class RenewableAttention(FusedAttention):
    """An attention that graphs can capture.

    In a graph, single queries with a window need a mask of their own, so that rows with one are sequences of their own.
    """

    def __init__(self, device: AscendDevice, node: Node) -> None:
        super().__init__(device, node)
        window = node.attributes["window"]
        self._renewal = Renewal(device, self._version, node, window is not None, window)

    def update(self, host: dict[str, NDArray[Any]]) -> None:
        """Take the lists of the run that is about to be captured or replayed."""
        _ = self._device.causal_mask  # nothing can be copied while a graph is captured
        self._renewal.update(host)

    def __call__(
        self,
        q: Tensor,
        cache: NPUPagedKV,
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
        record = self._device.record
        if record is None:
            return super().__call__(
                q, cache, query_start, seq_lens, block_table, sinks, scale=scale, window=window, causal=causal
            )
        attention = self._renewal.within(record)
        k, v = (x.reshape(*x.shape[:2], -1) for x in cache.whole)
        given = self._given(q, scale, sinks)
        if isinstance(attention.lists, RowLists):
            given |= {"atten_mask": attention.lists.hidden[: q.shape[0]]}
        elif causal:
            given |= {"sparse_mode": CAUSAL, "atten_mask": self._device.causal_mask}
        return attention.capture(self._device, (q.contiguous(), k, v), block_table, given)


def _attendable(node: Node) -> bool | str:
    if node.operand("sinks") is not None:
        return "knows no sinks"
    return _limits(node)


def _with_sinks(node: Node) -> bool | str:
    sinks = node.operand("sinks")
    if sinks is None or sinks.dtype != bfloat16:
        return "is for sinks of bfloat16"
    if node.attributes["window"] is not None:
        return "takes no window beside sinks"
    if cache_type(node)["v_dim"] > SINK_WIDTH:
        return f"takes values of at most {SINK_WIDTH} beside sinks"
    return _limits(node)


def _limits(node: Node) -> bool | str:
    q, cache = node.operand("q"), cache_type(node)
    assert q is not None
    heads, width, kv = shaped(node, "q")[1], cache["k_dim"], cache["heads"]
    assert isinstance(heads, int)
    if node.operand("bias") is not None or node.attributes["softcap"] is not None:
        return "takes neither a bias nor a softcap"
    if cache["scheme"] != q.dtype.name:
        return f"reads a cache of the dtype of the queries, not {cache['scheme']}"
    if cache["v_dim"] != width or width % 16 or not 0 < width <= HEAD_LIMIT:
        return f"takes keys and values of one width, a multiple of 16 up to {HEAD_LIMIT}"
    if heads > HEADS or heads // kv > SHARING or kv * width > ROW:
        return f"takes up to {HEADS} heads, {SHARING} per key head, and {ROW} numbers in a row of the cache"
    return filled(*node.operands) or "does not take empty tensors"
