"""Native paged attention and the writer of its cache."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from xinheng.core.errors import DeviceError

from ..arrays import Array, address, contiguous, stride, strides
from .library import Library, cache_code, check, int32_of, type_code

_CALL = struct.Struct("11Q28q2dq4i")  # `AttentionCall` in csrc/attention.h
STRIDES = struct.Struct("4q")
"""`PageStrides` in csrc/attention.h."""


def page_strides(pages: Array) -> tuple[int, int, int, int]:
    """Strides of pages [blocks, block_size, heads, width] in the order of `PageStrides`, in values."""
    block, slot, head, dim = strides(pages)
    return block, slot, head, dim


def scales_of(scales: Array | None) -> tuple[int, tuple[int, int, int, int]]:
    """The address of scales [blocks, block_size, heads] and their strides; null for a cache that has none."""
    return (0, (0, 0, 0, 0)) if scales is None else (address(scales), page_strides(scales[..., None]))


def write_cache_kernel(library: Library) -> Callable[..., Any]:
    """The kernel of `write_cache`; it writes the cache in place and returns it."""
    run = library.write_cache

    def write_cache(cache: Any, k: Array, v: Array, slots: Array) -> Any:
        slots = int32_of(slots)
        tokens = slots.shape[0]
        pages_of, scales = cache[:2], cache[2:] or (None, None)
        for pages, new, scale in zip(pages_of, (k, v), scales, strict=True):
            blocks, size, heads, width = pages.shape
            if new.shape != (tokens, heads, width):
                raise DeviceError(f"write_cache: {list(new.shape)} does not fit {tokens} slots of {[heads, width]}")
            if stride(new, 2) != 1:
                new = contiguous(new)
            where, steps = scales_of(scale)
            bad = run(
                address(new),
                type_code(new),
                tokens,
                heads,
                stride(new, 0),
                stride(new, 1),
                width,
                address(slots),
                address(pages),
                cache_code(pages),
                blocks,
                size,
                STRIDES.pack(*page_strides(pages)),
                where,
                STRIDES.pack(*steps),
            )
            if bad >= 0:
                raise DeviceError(f"write_cache: slot {int(slots[bad])} is beyond the {blocks * size} cache slots")
            check(bad + 1, "write_cache")
        return cache

    return write_cache


def paged_attention_kernel(library: Library) -> Callable[..., tuple[Array, Array]]:
    """The kernel of `paged_attention` without the operand `bias`."""
    run, pack = library.paged_attention, _CALL.pack

    def paged_attention(
        q: Array,
        cache: Any,
        query_start: Array,
        seq_lens: Array,
        block_table: Array,
        sinks: Array | None = None,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
    ) -> tuple[Array, Array]:
        kind = type_code(q)
        if stride(q, 2) != 1:
            q = contiguous(q)
        query_start, seq_lens, block_table = int32_of(query_start), int32_of(seq_lens), int32_of(block_table)
        k, v, *scales = cache
        (k_scale, k_steps), (v_scale, v_steps) = map(scales_of, scales or (None, None))
        if stride(v, 3) != 1:
            raise DeviceError(f"paged_attention: the dims of a value must adjoin, the cache has strides {strides(v)}")
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
            sinks = contiguous(sinks)
            sink, sink_kind = address(sinks), type_code(sinks)
        out = library.empty((tokens, heads, v_width), q.dtype)
        lse = library.empty((tokens, heads), np.float32)
        bad = run(
            pack(
                address(q), address(k), address(v), k_scale, v_scale,
                address(query_start), address(seq_lens), address(block_table),
                sink, address(out), address(lse),
                tokens, heads, kv_heads, k_width, v_width, stride(q, 0), stride(q, 1),
                blocks, size, seqs, block_table.shape[1], block_table.shape[1], *page_strides(k), *page_strides(v),
                *k_steps, *v_steps,
                scale, softcap or 0.0, window or 0,
                kind, cache_code(k), sink_kind, causal,
            )
        )  # fmt: skip
        if bad >= 0:
            raise DeviceError(f"paged_attention: sequence {bad} has impossible lengths or blocks outside the cache")
        check(bad + 1, "paged_attention")
        return out, lse

    return paged_attention
