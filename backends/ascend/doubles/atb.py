"""Doubles of ATB's attention on Atlas inference cards (310P): a cache in NZ order, float16, additive masks in NZ.

Usage of these operators, which have no manual page in the wheel, follows vllm-ascend's 310P backend.
"""

from __future__ import annotations

import torch

from .rules import NZ, demand, demand_contiguous, demand_dtype, double, format_of

Tensor = torch.Tensor


@double("atb::_npu_paged_attention", ("310p",))
def _npu_paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
    *,
    workspace: Tensor | None = None,
) -> None:
    name = "_npu_paged_attention"
    _check(name, query, key_cache, value_cache, num_kv_heads, num_heads, block_table, context_lens, out)
    demand(name, query.shape[0] == block_table.shape[0], "there must be one query per sequence")
    for s, length in enumerate(context_lens.tolist()):
        k, v = _rows(name, key_cache, value_cache, block_table[s], length, num_kv_heads)
        out[s : s + 1] = _attend(query[s : s + 1], k, v, torch.zeros(1, length), scale_value)


@double("atb::_npu_paged_attention_splitfuse", ("310p",), hosted=("seq_len",))
def _npu_paged_attention_splitfuse(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: Tensor,
) -> None:
    name = "_npu_paged_attention_splitfuse"
    _check(name, query, key_cache, value_cache, num_kv_heads, num_heads, block_table, context_lens, out)
    demand(name, seq_len.dtype is torch.int32, "seq_len must be int32")
    demand(name, seq_len.shape == context_lens.shape, "there must be as many lengths of queries as of sequences")
    demand(name, int(seq_len.sum()) == query.shape[0], "the lengths of queries must add up to the tokens")
    demand(name, mask.dtype is torch.float16, "the mask must be float16, added to the logits")
    demand(name, format_of(mask) == NZ, "the mask must lie in FRACTAL_NZ")
    longest = int(context_lens.max())
    fits = mask.dim() == 2 and mask.shape[0] == query.shape[0] and mask.shape[1] >= longest
    demand(name, fits and mask.shape[1] % 16 == 0, f"the mask must be [tokens, {longest} or more in steps of 16]")
    start = 0
    for s, (queries, length) in enumerate(zip(seq_len.tolist(), context_lens.tolist(), strict=True)):
        stop = start + queries
        k, v = _rows(name, key_cache, value_cache, block_table[s], length, num_kv_heads)
        out[start:stop] = _attend(query[start:stop], k, v, mask[start:stop, :length].double(), scale_value)
        start = stop


def _check(
    name: str,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    kv_heads: int,
    heads: int,
    table: Tensor,
    lengths: Tensor,
    out: Tensor,
) -> None:
    for what, x in {"query": query, "key_cache": key_cache, "value_cache": value_cache, "out": out}.items():
        demand_dtype(name, what, x, (torch.float16,))
    demand_contiguous(name, query=query, key_cache=key_cache, value_cache=value_cache, table=table, out=out)
    demand(name, out.data_ptr() != query.data_ptr() or out.numel() == 0, "out must not be query")
    demand(
        name, query.dim() == 3 and query.shape[1] == heads and heads % kv_heads == 0, f"query must be [T, {heads}, D]"
    )
    dim = query.shape[2]
    demand(name, dim % 16 == 0 and dim <= 128, f"the head dim {dim} must be a multiple of 16 up to 128")
    demand(name, out.shape == query.shape, "out must be like query")
    block = key_cache.shape[2]
    demand(name, block % 16 == 0 and block <= 128, f"blocks of {block} tokens are not allowed")
    shape = (key_cache.shape[0], kv_heads * dim // 16, block, 16)
    demand(
        name, tuple(key_cache.shape) == tuple(value_cache.shape) == shape, f"caches must be NZ of shape {list(shape)}"
    )
    demand(name, table.dtype is torch.int32 and table.dim() == 2, "block_table must be int32 of two axes")
    demand(
        name, lengths.dtype is torch.int32 and tuple(lengths.shape) == table.shape[:1], "context_lens must be int32 [B]"
    )


def _rows(
    name: str, key_cache: Tensor, value_cache: Tensor, row: Tensor, length: int, heads: int
) -> tuple[Tensor, Tensor]:
    block = key_cache.shape[2]
    used = row[: -(-length // block)].long()
    there = used.numel() * block >= length > 0 and bool(((used >= 0) & (used < key_cache.shape[0])).all())
    demand(name, there, f"{length} tokens are not in blocks {used.tolist()}")
    k, v = (
        cache[used].permute(0, 2, 1, 3).reshape(used.numel() * block, heads, -1)[:length]
        for cache in (key_cache, value_cache)
    )
    return k, v


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    group = q.shape[1] // k.shape[1]
    keyed, valued = (x.double().transpose(0, 1).repeat_interleave(group, 0) for x in (k, v))
    logits = q.double().transpose(0, 1) @ keyed.transpose(1, 2) * scale + mask
    return (torch.softmax(logits, -1) @ valued).transpose(0, 1).to(q.dtype)
