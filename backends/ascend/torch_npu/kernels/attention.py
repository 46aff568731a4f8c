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

from ...chips import BLOCK_SIZE, HEAD_LIMIT
from ..batches import Batch
from ..handles import NPUPagedKV
from .captured import CapturedLists
from .conditions import HALVES, filled, held, shaped
from .planner import Planner

if TYPE_CHECKING:
    from ...._torch.capture import Record
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
    for name, sinks in (("npu_fused_infer_attention_score", False), ("npu_fused_infer_attention_score_v2", True)):
        kernels.register(
            ops.paged_attention,
            name=name,
            dtypes=[bfloat16] if sinks else HALVES,
            when=_with_sinks if sinks else _attendable,
            host=("query_start", "seq_lens"),
        )(Planner(lambda node: attention_of(device, node)))


def attention_of(device: AscendDevice, node: Node) -> FusedAttention:
    """The function of one node; graphs can capture one without window and sinks."""
    renewable = node.attributes["window"] is None and node.operand("sinks") is None
    kind = RenewableAttention if renewable else FusedAttention
    return kind(device, held(node)["heads"], device.reads(node.results[1]))


class FusedAttention:
    """One attention of a graph; `wants_lse` says whether anything reads its log-sum-exps."""

    def __init__(self, device: AscendDevice, kv_heads: int, wants_lse: bool) -> None:
        self._device, self._kv_heads, self._wants_lse = device, kv_heads, wants_lse

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
        single = batch.longest == 1 and window is not None and bool((batch.lengths > window).any())
        given: dict[str, Any] = {"block_table": table, "block_size": BLOCK_SIZE, **self._scaled(q, scale, sinks)}
        if single:
            assert window is not None
            hidden = self._device.remembered.get(
                "hidden",
                (batch.lengths,),
                (window, table.shape[1]),
                lambda: self._hidden(batch, window, table.shape[1]),
            )
            lists = self._lists([1] * batch.sequences.size, batch, sinks)
            out, lse = self._call(
                rows[:, None], memory, sinks, given | lists | {"input_layout": "BSND", "atten_mask": hidden}
            )
            out, lse = out[:, 0], lse.reshape(-1, q.shape[1]) if self._wants_lse else lse
        else:
            given |= (
                self._lists(batch.ends, batch, sinks) | {"input_layout": "TND"} | self._sparse(batch, window, causal)
            )
            out, lse = self._call(rows, memory, sinks, given)
        return self._device.spread(out, lse.reshape(-1, q.shape[1]) if self._wants_lse else None, batch)

    def _call(
        self, q: Tensor, memory: list[Tensor], sinks: Tensor | None, given: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        npu = torch.ops.npu
        made: tuple[Tensor, Tensor]
        if sinks is None:
            made = npu.npu_fused_infer_attention_score(q, *memory, softmax_lse_flag=self._wants_lse, **given)
        else:
            made = npu.npu_fused_infer_attention_score_v2(
                q, *memory, learnable_sink=sinks, return_softmax_lse=self._wants_lse, **given
            )
        return made

    def _scaled(self, q: Tensor, scale: float, sinks: Tensor | None) -> dict[str, Any]:
        """Numbers of heads and the scale, whose default of 1 is never meant, under the names of a version."""
        first = sinks is None
        return {
            "num_heads" if first else "num_query_heads": q.shape[1],
            "num_key_value_heads": self._kv_heads,
            "scale" if first else "softmax_scale": scale,
        }

    def _lists(self, queries: list[int], batch: Batch, sinks: Tensor | None) -> dict[str, Any]:
        names = (
            ("actual_seq_lengths", "actual_seq_lengths_kv")
            if sinks is None
            else ("actual_seq_qlen", "actual_seq_kvlen")
        )
        return dict(zip(names, (queries, [int(n) for n in batch.lengths]), strict=True))

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
    """An attention that graphs can capture: one without window and sinks, which takes new lists as they are."""

    def update(self, host: dict[str, NDArray[Any]]) -> None:
        """Take the lists of the run that is about to be captured or replayed."""
        record, _ = self._device.record, self._device.causal_mask  # nothing can be copied while a graph is captured
        assert record is not None
        names = ("actual_seq_lengths", "actual_seq_lengths_kv")
        record.notes.setdefault(id(self), CapturedLists(names)).renew(self._device, host)

    def __call__(self, *operands: Any, **attributes: Any) -> tuple[Tensor, Tensor | None]:
        if self._device.record is None:
            return super().__call__(*operands, **attributes)
        q, cache, _, _, block_table = operands[:5]
        return self._captured(
            self._device.record, q, cache, block_table, attributes["scale"], attributes.get("causal", True)
        )

    def _captured(
        self, record: Record, q: Tensor, cache: NPUPagedKV, block_table: Tensor, scale: float, causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        k, v = (x.reshape(*x.shape[:2], -1) for x in cache.whole)
        given = self._scaled(q, scale, None) | {"block_size": BLOCK_SIZE, "input_layout": "TND"}
        given |= {"softmax_lse_flag": self._wants_lse}
        if causal:
            given |= {"sparse_mode": CAUSAL, "atten_mask": self._device.causal_mask}
        lists: CapturedLists = record.notes[id(self)]
        return lists.capture(self._device, (q.contiguous(), k, v), block_table, given)


def nothing(q: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Outputs and log-sum-exps of queries that see no key."""
    out = torch.zeros((*q.shape[:2], width), dtype=q.dtype, device=q.device)
    return out, torch.full(q.shape[:2], -torch.inf, dtype=torch.float32, device=q.device)


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
    if held(node)["v_dim"] > SINK_WIDTH:
        return f"takes values of at most {SINK_WIDTH} beside sinks"
    return _limits(node)


def _limits(node: Node) -> bool | str:
    q, cache = node.operand("q"), held(node)
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
