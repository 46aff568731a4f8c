"""The paged cache and attention, sequence by sequence in plain torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from xinheng.core import ops
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import StateType

from ..handles import NAMES, TorchPagedKV, TorchPagedLatent, TorchQuantizedKV
from .elementwise import cast, wide
from .quantization import dynamic_quant
from .registry import FLOATS, TORCH_KERNELS

Tensor = torch.Tensor


def readable(node: Node) -> bool | str:
    """Torch computes with the dtype of the cache, or has codes and scales."""
    cache = node.operand("cache")
    if cache is None or not isinstance(cache.type, StateType):
        return "torch has no kernels without a cache"
    known = cache.type.quantized or cache.type["scheme"] in {kind.name for kind in FLOATS}
    return known or f"torch has no kernels for a cache of {cache.type['scheme']}"


def rows_of(cache: TorchPagedKV, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """New keys and values as rows of the parts of a cache, before they are rounded to its dtypes."""
    if not isinstance(cache, TorchQuantizedKV):
        return k, v
    (k, k_scale), (v, v_scale) = dynamic_quant(k), dynamic_quant(v)
    return k, v, k_scale[..., 0], v_scale[..., 0]


def values_of(cache: TorchPagedKV, at: Any) -> tuple[Tensor, Tensor]:
    """The keys and values at an index into the pages; those of an int8 cache in float32."""
    return decoded(pages[at] for pages in cache.parts)


def decoded(parts: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Keys and values of what the parts of a cache hold: themselves, or codes times scales in float32."""
    k, v, *scales = parts
    if scales:
        k, v = (codes.float() * scale[..., None] for codes, scale in zip((k, v), scales, strict=True))
    return k, v


def working(q: Tensor, k: Tensor) -> torch.dtype:
    """What queries and keys are attended in: at least float32."""
    return torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)


@TORCH_KERNELS.register(ops.write_cache, name="torch_write_cache", dtypes=FLOATS, when=readable)
def write_cache(cache: TorchPagedKV, k: Tensor, v: Tensor, slots: Tensor) -> TorchPagedKV:
    kept = torch.nonzero(slots >= 0).reshape(-1)
    index = slots[kept].long()
    for pages, new in zip(cache.parts, rows_of(cache, k, v), strict=True):
        pages[index // pages.shape[1], index % pages.shape[1]] = cast(new[kept], dtype=NAMES[pages.dtype])
    return cache


@TORCH_KERNELS.register(
    ops.paged_attention, name="torch_paged_attention", dtypes=FLOATS, when=readable, host=("query_start", "seq_lens")
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
    out, lse = nothing(q, cache.v.shape[-1])
    size, group = cache.k.shape[1], q.shape[1] // cache.k.shape[2]
    for s, length in enumerate(seq_lens.tolist()):
        begin, end = int(query_start[s]), int(query_start[s + 1])
        if begin == end or length == 0:
            continue
        first = max(0, length - (end - begin) - window + 1) if window else 0
        keys = torch.arange(first, length, device=q.device)
        at = (block_table[s].long()[keys // size], keys % size)
        k, v = values_of(cache, at)
        kind = working(q, k)
        k, v = (x.to(kind).transpose(0, 1).repeat_interleave(group, dim=0) for x in (k, v))
        found = attend(
            q[begin:end], k, v, keys, length, sinks, None if bias is None else bias[begin:end, :, first:length],
            scale=scale, window=window, softcap=softcap, causal=causal,
        )  # fmt: skip
        out[begin:end], lse[begin:end] = found[0].to(q.dtype), found[1]
    return out, lse


def nothing(q: Tensor, v_dim: int) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of queries that see no key."""
    out = torch.zeros((*q.shape[:2], v_dim), dtype=q.dtype, device=q.device)
    return out, torch.full(q.shape[:2], -torch.inf, dtype=torch.float32, device=q.device)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    length: int,
    sinks: Tensor | None,
    bias: Tensor | None,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """One sequence: q [n, heads, k_dim], the last n of `length` positions, over wide k and v [heads, keys, dim]."""
    n = q.shape[0]
    logits = q.to(k.dtype).transpose(0, 1) @ k.transpose(1, 2) * scale
    if softcap:
        logits = torch.tanh(logits / softcap) * softcap
    if bias is not None:
        logits = logits + wide(bias).transpose(0, 1)
    positions = torch.arange(length - n, length, device=q.device)[:, None]
    visible = (keys <= positions) if causal else (positions >= 0).expand(n, keys.numel())
    if window:
        visible = visible & (positions - keys < window)
    visible = visible & (positions >= 0)
    sink = None if sinks is None else wide(sinks).reshape(-1, 1, 1).expand(-1, n, 1)
    out, lse = weighed(logits, v, visible, sink)
    return out.transpose(0, 1), lse.transpose(0, 1)


def weighed(logits: Tensor, v: Tensor, visible: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """Values v [..., keys, dim] by the softmax of logits [..., rows, keys] where `visible`, and the log-sum-exps.

    `sink` [..., rows, 1] is one more logit, without a value. Rows that see no key get 0 and -inf.
    """
    keys = logits.shape[-1]
    logits = logits.masked_fill(~visible, -torch.inf)
    if sink is not None:
        logits = torch.cat((logits, sink), dim=-1)
    total = torch.logsumexp(logits, dim=-1)
    p = torch.exp(logits - torch.where(total.isinf(), 0.0, total)[..., None])[..., :keys]
    seen = visible.any(-1)
    return torch.where(seen[..., None], p @ v, 0.0), torch.where(seen, total, -torch.inf)


@TORCH_KERNELS.register(ops.sdpa_varlen, name="torch_sdpa_varlen", dtypes=FLOATS)
def sdpa_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start: Tensor,
    key_start: Tensor,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    out, lse = nothing(q, v.shape[-1])
    begins, firsts, group = query_start.tolist(), key_start.tolist(), q.shape[1] // k.shape[1]
    for s in range(len(begins) - 1):
        (begin, end), (first, last) = begins[s : s + 2], firsts[s : s + 2]
        if begin == end or first == last:
            continue
        keys = torch.arange(last - first, device=q.device)
        keyed, valued = (wide(x[first:last]).transpose(0, 1).repeat_interleave(group, dim=0) for x in (k, v))
        added = None if bias is None else bias[begin:end, :, : last - first]
        found = attend(
            q[begin:end], keyed, valued, keys, last - first, sinks, added,
            scale=scale, window=window, softcap=softcap, causal=causal,
        )  # fmt: skip
        out[begin:end], lse[begin:end] = found[0].to(q.dtype), found[1]
    return out, lse


@TORCH_KERNELS.register(ops.gather_kv_cache, name="torch_gather_kv_cache")
def gather_kv_cache(cache: TorchPagedKV, seq_lens: Tensor, block_table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    starts, slots = places(cache.k.shape[:2], seq_lens, block_table)
    return *decoded(gather_slots(pages, slots) for pages in cache.parts), starts


def places(pages: Any, seq_lens: Tensor, block_table: Tensor) -> tuple[Tensor, Tensor]:
    """Where each sequence starts, and the slot of each position of each sequence, -1 where the table names no block."""
    blocks, size = pages
    lengths = seq_lens.long()
    starts = torch.cat((lengths.new_zeros(1), torch.cumsum(lengths, 0)))
    owner = torch.repeat_interleave(torch.arange(lengths.numel(), device=lengths.device), lengths)
    position = torch.arange(owner.numel(), device=lengths.device) - starts[owner]
    block = block_table.long()[owner, position // size]
    slots = torch.where((block >= 0) & (block < blocks), block * size + position % size, -1)
    return starts.to(torch.int32), slots


def gather_slots(pages: Tensor, slots: Tensor) -> Tensor:
    """Rows of pages [blocks, block_size, ...] by slot; zeros for -1."""
    held = slots.clamp(min=0)
    rows = pages[held // pages.shape[1], held % pages.shape[1]]
    bits = rows.view(torch.uint8) if rows.element_size() == 1 else rows  # torch cannot fill float8
    bits[slots < 0] = 0
    return rows


@TORCH_KERNELS.register(ops.copy_blocks, name="torch_copy_blocks")
def copy_blocks(cache: TorchPagedKV | TorchPagedLatent, pairs: Tensor) -> TorchPagedKV | TorchPagedLatent:
    source, target = pairs.long().unbind(-1)
    for pages in cache.parts:
        pages[target] = pages[source]
    return cache
