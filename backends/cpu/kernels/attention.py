"""Native paged attention and the writer of its cache."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch

from xinheng.core.errors import DeviceError

from .library import Library, check, int32_of, type_code

_CALL = struct.Struct("9Q20q2dq4i")  # `AttentionCall` in csrc/attention.h
STRIDES = struct.Struct("4q")
"""`PageStrides` in csrc/attention.h."""


def page_strides(pages: torch.Tensor) -> tuple[int, int, int, int]:
    """Strides of pages [blocks, block_size, heads, width] in the order of `PageStrides`, in values."""
    block, slot, head, dim = pages.stride()
    return block, slot, head, dim


def write_cache_kernel(library: Library) -> Callable[..., Any]:
    """The kernel of `write_cache`; it writes the cache in place and returns it."""
    run = library.write_cache

    def write_cache(cache: Any, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> Any:
        slots = int32_of(slots)
        tokens = slots.shape[0]
        for pages, new in ((cache.k, k), (cache.v, v)):
            blocks, size, heads, width = pages.shape
            if new.shape != (tokens, heads, width):
                raise DeviceError(f"write_cache: {list(new.shape)} does not fit {tokens} slots of {[heads, width]}")
            if new.stride(2) != 1:
                new = new.contiguous()
            bad = run(
                new.data_ptr(),
                type_code(new),
                tokens,
                heads,
                new.stride(0),
                new.stride(1),
                width,
                slots.data_ptr(),
                pages.data_ptr(),
                type_code(pages),
                blocks,
                size,
                STRIDES.pack(*page_strides(pages)),
            )
            if bad >= 0:
                raise DeviceError(f"write_cache: slot {int(slots[bad])} is beyond the {blocks * size} cache slots")
            check(bad + 1, "write_cache")
        return cache

    return write_cache


def paged_attention_kernel(library: Library) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The kernel of `paged_attention` without the operand `bias`."""
    run, pack = library.paged_attention, _CALL.pack

    def paged_attention(
        q: torch.Tensor,
        cache: Any,
        query_start: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        sinks: torch.Tensor | None = None,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kind = type_code(q)
        if q.stride(2) != 1:
            q = q.contiguous()
        query_start, seq_lens, block_table = int32_of(query_start), int32_of(seq_lens), int32_of(block_table)
        k, v = cache.k, cache.v
        if v.stride(3) != 1:
            raise DeviceError(f"paged_attention: the dims of a value must adjoin, the cache has strides {v.stride()}")
        blocks, size, kv_heads, k_width = k.shape
        tokens, heads, width = q.shape
        seqs, v_width = seq_lens.shape[0], v.shape[3]
        if width != k_width or heads % kv_heads or query_start.shape[0] != seqs + 1 or block_table.shape[0] != seqs:
            raise DeviceError(
                f"paged_attention: q {list(q.shape)} does not fit cache {list(k.shape)}, {seqs} sequences"
            )
        if sinks is None:
            sink, sink_kind = 0, 0
        else:
            sinks = sinks.contiguous()
            sink, sink_kind = sinks.data_ptr(), type_code(sinks)
        out = torch.empty((tokens, heads, v_width), dtype=q.dtype)
        lse = torch.empty((tokens, heads), dtype=torch.float32)
        bad = run(
            pack(
                q.data_ptr(), k.data_ptr(), v.data_ptr(),
                query_start.data_ptr(), seq_lens.data_ptr(), block_table.data_ptr(),
                sink, out.data_ptr(), lse.data_ptr(),
                tokens, heads, kv_heads, k_width, v_width, q.stride(0), q.stride(1),
                blocks, size, seqs, block_table.shape[1], block_table.shape[1], *page_strides(k), *page_strides(v),
                scale, softcap or 0.0, window or 0,
                kind, type_code(k), sink_kind, causal,
            )
        )  # fmt: skip
        if bad >= 0:
            raise DeviceError(f"paged_attention: sequence {bad} has impossible lengths or blocks outside the cache")
        check(bad + 1, "paged_attention")
        return out, lse

    return paged_attention
