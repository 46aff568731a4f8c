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
    added, start = _added(name, mask, query.shape[0], int(context_lens.max())), 0
    for s, (queries, length) in enumerate(zip(seq_len.tolist(), context_lens.tolist(), strict=True)):
        stop = start + queries
        k, v = _rows(name, key_cache, value_cache, block_table[s], length, num_kv_heads)
        out[start:stop] = _attend(query[start:stop], k, v, added[start:stop, :length], scale_value)
        start = stop


@double("atb::_npu_flash_attention", ("310p",), hosted=("seq_len",))
def _npu_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: Tensor,
) -> None:
    name = "_npu_flash_attention"
    for what, x in {"query": query, "key": key, "value": value, "out": out}.items():
        demand_dtype(name, what, x, (torch.float16,))
    demand_contiguous(name, query=query, key=key, value=value, out=out)
    demand(name, out.data_ptr() != query.data_ptr() and out.shape == query.shape, "out must be like query, not query")
    tokens, heads, dim = query.shape
    demand(name, heads == num_heads and heads % num_kv_heads == 0, f"query must be [T, {num_heads}, D]")
    demand(name, dim % 16 == 0 and dim <= 128, f"the head dim {dim} must be a multiple of 16 up to 128")
    packed = tuple(key.shape) == tuple(value.shape) == (tokens, num_kv_heads, dim)
    demand(name, packed, f"key and value must be [{tokens}, {num_kv_heads}, {dim}]")
    demand(name, tokens > 0 and tokens % 16 == 0, f"there must be tokens in steps of 16, not {tokens}")
    demand(name, seq_len.dtype is torch.int32 and seq_len.dim() == 1, "seq_len must be int32 of one axis")
    demand(name, int(seq_len.sum()) == tokens and int(seq_len.min()) > 0, f"lengths must add up to {tokens} tokens")
    longest, start = int(seq_len.max()), 0
    added = _added(name, mask, longest, longest)
    for length in seq_len.tolist():
        part = slice(start, start + length)
        out[part] = _attend(query[part], key[part], value[part], added[:length, :length], scale_value)
        start += length


def _added(name: str, mask: Tensor, rows: int, keys: int) -> Tensor:
    """What a mask adds to logits [rows or more, keys or more]."""
    demand(name, mask.dtype is torch.float16, "the mask must be float16, added to the logits")
    demand(name, format_of(mask) == NZ, "the mask must lie in FRACTAL_NZ")
    high, wide = -(-rows // 16) * 16, -(-keys // 16)
    fits = mask.dim() == 4 and mask.shape[0] == 1 and mask.shape[1] >= wide and mask.shape[2] >= high
    told = f"the mask must be [1, {wide} or more, {high} or more, 16], not {list(mask.shape)}"
    demand(name, fits and mask.shape[2] % 16 == 0 and mask.shape[3] == 16, told)
    return mask[0].permute(1, 0, 2).flatten(1).double()


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
