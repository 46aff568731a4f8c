"""Doubles of the paged cache and of attention over it."""

from __future__ import annotations

import torch

from ..._torch.emulation import require
from ..chips import DECODE_BLOCKS, GROUP, GROUP_BF16, HEADS, PREFILL_BLOCK, Chip
from .rules import FLOATS, HALVES, Tensor, floats, indices


def reshape_paged_cache(
    k: Tensor, v: Tensor | None, k_cache: Tensor, v_cache: Tensor | None, slot_mapping: Tensor, *, chip: Chip
) -> None:
    """Write tokens [tokens, heads, width] into caches [blocks, heads, block, width]; a negative slot is skipped."""
    op = "reshape_paged_cache"
    floats(op, chip, {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache}, FLOATS)
    indices(op, slot_mapping=slot_mapping)
    require(k_cache.dim() == 4 and k_cache.shape[1] == k.shape[1], op, "caches are [blocks, heads, block, width]")
    require((v is None) == (v_cache is None), op, "v and v_cache come together")
    require(v is None or v.shape == k.shape, op, "v must be of the shape of k")
    kept = torch.nonzero(slot_mapping >= 0).reshape(-1)
    at = slot_mapping[kept].long()
    block = k_cache.shape[2]
    for cache, new in ((k_cache, k), (v_cache, v)):
        if cache is None or new is None:
            continue
        cache.transpose(1, 2)[at // block, at % block] = new[kept]


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, cu_seq_lens_q: Tensor, cu_seq_lens_kv: Tensor,
    alibi_slope: Tensor | None, attn_bias: Tensor | None, max_seq_len_q: int, max_seq_len_kv: int,
    softmax_scale: float, is_causal: bool, window_size_left: int = -1, window_size_right: int = -1,
    compute_dtype: torch.dtype = torch.float32, return_lse: bool = False, block_tables: Tensor | None = None,
    *, chip: Chip,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Packed queries [tokens, heads, width] over a paged cache; the log-sum-exp is [heads, tokens]."""
    op = "flash_attention"
    floats(op, chip, {"q": q, "k": k, "v": v, "out": out}, HALVES)
    indices(op, cu_seq_lens_q=cu_seq_lens_q, cu_seq_lens_kv=cu_seq_lens_kv, block_tables=block_tables)
    require(block_tables is not None and k.dim() == 4, op, "the double reads paged caches, with their block_tables")
    require(k.shape[2] == PREFILL_BLOCK, op, f"paged caches have blocks of {PREFILL_BLOCK}, not {k.shape[2]}")
    require(q.shape[-1] in HEADS, op, f"there are no heads of {q.shape[-1]}")
    require(out is None or out.data_ptr() != q.data_ptr(), op, "out must not alias q")
    require(alibi_slope is None and attn_bias is None, op, "the double has no slopes and no bias")
    assert block_tables is not None
    made = torch.empty_like(q) if out is None else out
    require(made.shape == (*q.shape[:-1], v.shape[-1]), op, "out must be like q, in the width of v")
    lse = torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=torch.float32)
    starts, ends = cu_seq_lens_q.tolist(), cu_seq_lens_kv.tolist()
    for s in range(len(starts) - 1):
        count, length = starts[s + 1] - starts[s], ends[s + 1] - ends[s]
        require(count <= max_seq_len_q and length <= max_seq_len_kv, op, "a sequence is longer than max_seq_len says")
        if count and length:
            rows = slice(starts[s], starts[s + 1])
            made[rows], lse[:, rows] = _attended(
                q[rows], *_gathered(k, v, block_tables[s], length), softmax_scale, is_causal, window_size_left
            )
    return (made, lse) if return_lse else made


def decode_1_3(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor, block_tables: Tensor, context_lens: Tensor,
    k_cache_quant_scale: Tensor | None, v_cache_quant_scale: Tensor | None, alibi_slopes: Tensor | None,
    max_context_len: int, windows_size_left: int, windows_size_right: int, softmax_scale: float,
    return_lse: bool = False, *, chip: Chip,
) -> tuple[Tensor, Tensor] | Tensor:  # fmt: skip
    """`single_query_cached_kv_attn` with values in a cache of their own."""
    return single_query_cached_kv_attn(
        q, k_cache, v_cache, out, block_tables, context_lens, k_cache_quant_scale, v_cache_quant_scale, alibi_slopes,
        max_context_len, windows_size_left, windows_size_right, softmax_scale, return_lse, chip=chip,
    )  # fmt: skip


def single_query_cached_kv_attn(
    q: Tensor, k_cache: Tensor, v_cache: Tensor | None, out: Tensor, block_tables: Tensor, context_lens: Tensor,
    k_cache_quant_scale: Tensor | None, v_cache_quant_scale: Tensor | None, alibi_slopes: Tensor | None,
    max_context_len: int, windows_size_left: int, windows_size_right: int, softmax_scale: float,
    return_lse: bool = False, *, head_size_v: int = -1, chip: Chip,
) -> tuple[Tensor, Tensor] | Tensor:  # fmt: skip
    """Queries [sequences, Sq, heads, width], the last positions of each; the log-sum-exp is [sequences, heads, Sq].

    Without `v_cache` values are the first `head_size_v` numbers of keys.
    """
    op = "single_query_cached_kv_attn"
    floats(op, chip, {"q": q, "k_cache": k_cache, "v_cache": v_cache, "out": out}, HALVES)
    indices(op, block_tables=block_tables, context_lens=context_lens)
    require(
        q.dim() == 4 and k_cache.dim() == 4,
        op,
        "q is [sequences, Sq, heads, width], a cache [blocks, heads, block, width]",
    )
    require(k_cache.shape[2] in DECODE_BLOCKS, op, f"blocks of {k_cache.shape[2]} are none of {sorted(DECODE_BLOCKS)}")
    width = head_size_v if v_cache is None else v_cache.shape[-1]
    require(q.shape[-1] == k_cache.shape[-1], op, "queries and keys must be of one width")
    for size in (q.shape[-1], width):
        require(size in HEADS, op, f"there are no heads of {size}")
    require(out.shape == (*q.shape[:-1], width), op, f"out must be like q, with {width} numbers")
    values = k_cache[..., :width] if v_cache is None else v_cache
    require(windows_size_right == -1, op, "windows_size_right must be -1")
    require(out.data_ptr() != q.data_ptr(), op, "out must not alias q")
    limit = GROUP_BF16 if k_cache.dtype is torch.bfloat16 else GROUP
    group = q.shape[1] * q.shape[2] // k_cache.shape[1]
    require(group <= limit, op, f"Sq * Hq / Hkv is {group}, at most {limit} is allowed")
    require(
        k_cache_quant_scale is None and v_cache_quant_scale is None and alibi_slopes is None,
        op,
        "the double has no scales, no slopes",
    )
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), -torch.inf, dtype=torch.float32)
    for s, length in enumerate(context_lens.tolist()):
        require(length <= max_context_len, op, "a context is longer than max_context_len says")
        if length:
            out[s], lse[s] = _attended(
                q[s], *_gathered(k_cache, values, block_tables[s], length), softmax_scale, True, windows_size_left
            )
    return (out, lse) if return_lse else out


def _gathered(k: Tensor, v: Tensor, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values [heads, length, width] of one sequence."""
    block = k.shape[2]
    used = table[: (length + block - 1) // block].long()
    found = [p[used].transpose(0, 1).flatten(1, 2)[:, :length] for p in (k, v)]
    return found[0], found[1]


def _attended(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, left: int) -> tuple[Tensor, Tensor]:
    """The last n positions [n, heads, width] over their keys: the output, and the log-sum-exp [heads, n]."""
    n, length = q.shape[0], k.shape[1]
    repeat = q.shape[1] // k.shape[0]
    wide = [t.double().repeat_interleave(repeat, 0) for t in (k, v)]
    at, keys = torch.arange(length - n, length)[:, None], torch.arange(length)
    seen = (keys <= at) if causal else torch.ones(n, length, dtype=torch.bool)
    if left >= 0:
        seen = seen & (at - keys <= left)  # a window counts left + 1 keys
    logits = (q.double().transpose(0, 1) @ wide[0].transpose(1, 2) * scale).masked_fill(~seen, -torch.inf)
    total = torch.logsumexp(logits, -1)
    p = torch.exp(logits - torch.where(total.isinf(), 0.0, total)[..., None])
    return (p @ wide[1]).transpose(0, 1).to(q.dtype), total.float()
