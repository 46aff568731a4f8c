"""The paged cache and attention over it, sequence by sequence in plain torch."""

from __future__ import annotations

from typing import Any

import torch

from xinheng.core import ops
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import StateType

from ..handles import NAMES, TorchPagedKV
from .elementwise import cast, wide
from .registry import FLOATS, TORCH_KERNELS

Tensor = torch.Tensor


def _readable(node: Node) -> bool | str:
    cache = node.operand("cache")
    coding = cache.type["scheme"] if cache is not None and isinstance(cache.type, StateType) else None
    return coding in {kind.name for kind in FLOATS} or f"torch has no kernels for a cache of {coding}"


@TORCH_KERNELS.register(ops.write_cache, name="torch_write_cache", dtypes=FLOATS, when=_readable)
def write_cache(cache: TorchPagedKV, k: Tensor, v: Tensor, slots: Tensor) -> TorchPagedKV:
    kept = torch.nonzero(slots >= 0).reshape(-1)
    index = slots[kept].long()
    for pages, new in ((cache.k, k), (cache.v, v)):
        pages.view(-1, *pages.shape[2:]).index_copy_(0, index, cast(new[kept], dtype=NAMES[pages.dtype]))
    return cache


@TORCH_KERNELS.register(
    ops.paged_attention, name="torch_paged_attention", dtypes=FLOATS, when=_readable, host=("query_start", "seq_lens")
)
def paged_attention(
    q: Tensor,
    cache: TorchPagedKV,
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
    out = torch.zeros((*q.shape[:2], cache.v.shape[-1]), dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float32, device=q.device)
    size, group = cache.k.shape[1], q.shape[1] // cache.k.shape[2]
    kind = torch.promote_types(q.dtype, torch.promote_types(cache.k.dtype, torch.float32))
    for s, length in enumerate(seq_lens.tolist()):
        begin, end = int(query_start[s]), int(query_start[s + 1])
        n = end - begin
        if n == 0 or length == 0:
            continue
        first = max(0, length - n - window + 1) if window else 0
        keys = torch.arange(first, length, device=q.device)
        at = (block_table[s].long()[keys // size], keys % size)
        k, v = (p[at].to(kind).transpose(0, 1).repeat_interleave(group, dim=0) for p in (cache.k, cache.v))
        logits = q[begin:end].to(kind).transpose(0, 1) @ k.transpose(1, 2) * scale
        if softcap:
            logits = torch.tanh(logits / softcap) * softcap
        if bias is not None:
            logits = logits + wide(bias[begin:end][..., first:length]).transpose(0, 1)
        positions = torch.arange(length - n, length, device=q.device)[:, None]
        visible = (keys <= positions) if causal else (positions >= 0).expand(n, keys.numel())
        if window:
            visible = visible & (positions - keys < window)
        visible = visible & (positions >= 0)
        logits = logits.masked_fill(~visible, -torch.inf)
        if sinks is not None:
            logits = torch.cat((logits, wide(sinks).reshape(-1, 1, 1).expand(-1, n, 1)), dim=-1)
        total = torch.logsumexp(logits, dim=-1)
        p = torch.exp(logits - torch.where(total.isinf(), 0.0, total)[..., None])[..., : keys.numel()]
        seen = visible.any(-1)
        out[begin:end] = torch.where(seen[None, :, None], p @ v, 0.0).transpose(0, 1).to(q.dtype)
        lse[begin:end] = torch.where(seen, total, -torch.inf).transpose(0, 1)
    return out, lse
