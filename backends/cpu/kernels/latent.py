"""Native latent attention: the writer of its cache, attention over it, and the per-head products around it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from xinheng.core.errors import DeviceError

from ..arrays import Array, address, contiguous, stride, strides
from .attention import STRIDES
from .library import Library, check, int32_of, type_code

_LATENT = struct.Struct("9Q12qd3i4x")  # `LatentCall` in csrc/latent.h
_BATCHED = struct.Struct("3Q6q2i")  # `BatchedCall` in csrc/batched.h


def write_latent_cache_kernel(library: Library) -> Callable[..., Any]:
    """The kernel of `write_latent_cache`; it writes the cache in place and returns it."""

    def write_latent_cache(cache: Any, latent: Array, rope: Array, slots: Array) -> Any:
        slots = int32_of(slots)
        tokens = slots.shape[0]
        for pages, new in ((cache.latent, latent), (cache.rope, rope)):
            blocks, size, width = pages.shape
            if new.shape != (tokens, width):
                raise DeviceError(f"write_latent_cache: {list(new.shape)} does not fit {tokens} slots of {width}")
            new = new if stride(new, 1) == 1 else contiguous(new)
            given = (address(new), type_code(new), tokens, 1, stride(new, 0), width, width, address(slots))
            block, slot, dim = strides(pages)
            packed = STRIDES.pack(block, slot, 0, dim)
            bad = library.write_cache(*given, address(pages), type_code(pages), blocks, size, packed, None, None)
            if bad >= 0:
                there = f"beyond the {blocks * size} cache slots"
                raise DeviceError(f"write_latent_cache: slot {int(slots[bad])} is {there}")
            check(bad + 1, "write_latent_cache")
        return cache

    return write_latent_cache


def mla_attention_kernel(library: Library) -> Callable[..., tuple[Array, Array]]:
    """The kernel of `mla_attention`."""
    run, pack = library.latent_attention, _LATENT.pack

    def mla_attention(
        q_latent: Array,
        q_rope: Array,
        cache: Any,
        query_start: Array,
        seq_lens: Array,
        block_table: Array,
        *,
        scale: float,
        causal: bool = True,
    ) -> tuple[Array, Array]:
        q_latent, q_rope = (q if stride(q, 2) == 1 else contiguous(q) for q in (q_latent, q_rope))
        query_start, seq_lens, block_table = int32_of(query_start), int32_of(seq_lens), int32_of(block_table)
        (tokens, heads, dim), rope_dim, seqs = q_latent.shape, q_rope.shape[2], seq_lens.shape[0]
        blocks, size = cache.latent.shape[:2]
        fits = (dim, rope_dim) == (cache.latent.shape[2], cache.rope.shape[2]) and q_rope.shape[:2] == (tokens, heads)
        if not fits or query_start.shape[0] != seqs + 1 or block_table.shape[0] != seqs:
            queries = f"q_latent {list(q_latent.shape)} and q_rope {list(q_rope.shape)}"
            raise DeviceError(f"mla_attention: {queries} do not fit cache {list(cache.latent.shape)}, {seqs} sequences")
        out = library.empty((tokens, heads, dim), q_latent.dtype)
        lse = library.empty((tokens, heads), np.float32)
        call = pack(
            address(q_latent), address(q_rope), address(cache.latent), address(cache.rope),
            address(query_start), address(seq_lens), address(block_table), address(out), address(lse),
            tokens, heads, dim, rope_dim, *strides(q_latent)[:2], *strides(q_rope)[:2],
            blocks, size, seqs, block_table.shape[1],
            scale, type_code(q_latent), type_code(cache.latent), causal,
        )  # fmt: skip
        bad = run(call)
        if bad >= 0:
            raise DeviceError(f"mla_attention: sequence {bad} has impossible lengths or blocks outside the cache")
        check(bad + 1, "mla_attention")
        return out, lse

    return mla_attention


def batched_linear_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `batched_linear`."""
    run, pack = library.batched_linear, _BATCHED.pack

    def batched_linear(x: Array, weight: Any, *, transposed: bool = False) -> Array:
        (tokens, heads, columns), rows = x.shape, weight.shape[2 if transposed else 1]
        if (heads, columns) != (weight.shape[0], weight.shape[1 if transposed else 2]):
            raise DeviceError(f"batched_linear: x {list(x.shape)} does not fit weight {list(weight.shape)}")
        x = x if stride(x, 2) == 1 else contiguous(x)
        y = library.empty((tokens, heads, rows), x.dtype)
        table = ctypes.create_string_buffer(library.pack(weight))
        sizes = (tokens, heads, columns, rows, *strides(x)[:2])
        check(run(pack(address(x), ctypes.addressof(table), address(y), *sizes, type_code(x), transposed)), "batched")
        return y

    return batched_linear
