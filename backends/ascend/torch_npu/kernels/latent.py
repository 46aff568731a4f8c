"""Attention over cached latents (MLA in absorbed form) by `npu_fused_infer_attention_score`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.graph import Node

from ...._torch.kernels.attention import nothing
from ...._torch.kernels.registry import cache_type
from ...._torch.planner import Planner
from ...chips import BLOCK_SIZE
from ..batches import Batch
from ..handles import NPUPagedLatent
from ..version import FIRST
from .attention import CAUSAL
from .captured import Renewal
from .conditions import HALVES, filled, shaped

if TYPE_CHECKING:
    from ..device import AscendDevice

Tensor = torch.Tensor
LATENT, ROPE = 512, 64
"""The widths that the operator knows."""
HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
QUERIES = 16
"""The most queries of a sequence in one call."""


def register_latent(kernels: KernelRegistry, device: AscendDevice) -> None:
    """Enter the kernel of generations with fused attention."""
    kernels.register(
        ops.mla_attention,
        name=FIRST.name,
        dtypes=HALVES,
        when=_attendable,
        host=("query_start", "seq_lens"),
    )(Planner(lambda node: LatentAttention(device, node)))


class LatentAttention:
    """One attention of a graph. Longer prompts go in pieces of 16 queries, each a sequence to the operator.

    In a captured graph each query is a sequence of its own, so that their number does not depend on the lists.
    """

    def __init__(self, device: AscendDevice, node: Node) -> None:
        self._device, self._wants_lse = device, device.reads(node.results[1])
        self._renewal = Renewal(device, FIRST, node, by_row=True)

    def update(self, host: dict[str, NDArray[Any]]) -> None:
        """Take the lists of the run that is about to be captured or replayed."""
        self._renewal.update(host)

    def __call__(
        self,
        q_latent: Tensor,
        q_rope: Tensor,
        cache: NPUPagedLatent,
        query_start: NDArray[Any],
        seq_lens: NDArray[Any],
        block_table: Tensor,
        *,
        scale: float,
        causal: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        latent, rope = cache.whole
        given: dict[str, Any] = {
            FIRST.heads: q_latent.shape[1], FIRST.scale: scale, FIRST.sums: self._wants_lse, "key_rope": rope,
            "num_key_value_heads": 1, "block_size": BLOCK_SIZE,
        }  # fmt: skip
        if self._device.record is not None:
            attention = self._renewal.within(self._device.record)
            given |= {"query_rope": q_rope.contiguous()}
            return attention.capture(self._device, (q_latent.contiguous(), latent, latent), block_table, given)
        whole = self._device.batch(query_start, seq_lens, q_latent.shape[0])
        if not whole.sequences.size:
            return nothing(q_latent, LATENT)
        batch: Batch = self._device.remembered.get(
            "pieces", (whole.counts, whole.lengths, whole.sequences), (), lambda: whole.divided(QUERIES)
        )
        given |= {"query_rope": self._device.rows_of_queries(q_rope, batch)}
        given |= FIRST.lists(batch.ends, [int(n) for n in batch.lengths])
        if batch.longest > 1:
            given |= {"sparse_mode": CAUSAL, "atten_mask": self._device.causal_mask}
        rows, table = self._device.rows_of_queries(q_latent, batch), self._device.rows_of_table(block_table, batch)
        out, lse = FIRST.operator()(rows, latent, latent, input_layout="TND", block_table=table, **given)
        return self._device.spread(out, lse.reshape(-1, q_latent.shape[1]) if self._wants_lse else None, batch)


def _attendable(node: Node) -> bool | str:
    q, cache, heads = node.operand("q_latent"), cache_type(node), shaped(node, "q_latent")[1]
    assert q is not None
    if (cache["dim"], cache["rope_dim"]) != (LATENT, ROPE):
        return f"reads latents of {LATENT} and rotary keys of {ROPE}, not {cache['dim']} and {cache['rope_dim']}"
    if cache["scheme"] != q.dtype.name:
        return f"reads a cache of the dtype of the queries, not {cache['scheme']}"
    if heads not in HEADS:
        return f"takes a power of two of heads up to {HEADS[-1]}, not {heads}"
    if not node.attributes["causal"]:
        return "is causal"
    return filled(*node.operands) or "does not take empty tensors"
