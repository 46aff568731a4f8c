"""Writing into paged caches: keys and values, latents, and latents that are normed and turned on the way."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from xinheng.core import ops

from ..._torch.handles import TorchPagedKV, TorchPagedLatent
from ..launch import launch, power, tiles
from .quantization import coded, divisor_of
from .registry import FLOATS, TRITON_KERNELS, readable
from .rotary import turned
from .scalar import inverse_root, narrow, sum_of, widen

Tensor = torch.Tensor


@triton.jit(do_not_specialize=["rows"])
def write_kernel(
    pages,
    new,
    slots,
    rows,
    size,
    heads,
    width,
    block_step,
    place_step,
    head_step,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Heads of tokens, one per row, into the slots of their tokens; slot -1 writes nothing."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    slot = tl.load(slots + row // heads, row < rows, -1).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    there = (slot >= 0)[:, None] & (column < width)
    value = tl.load(new + row[:, None] * width + column, there, 0.0)
    at = slot // size * block_step + slot % size * place_step + row % heads * head_step
    tl.store(pages + at[:, None] + column, narrow(widen(value), pages.dtype.element_ty), there)


@triton.jit(do_not_specialize=["rows"])
def write_codes_kernel(
    pages, scales, new, slots, rows, size, heads, width, block_step, place_step, head_step, s_block, s_place, s_head,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same as codes of eight bits, with the scale of each head."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    slot = tl.load(slots + row // heads, row < rows, -1).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    there = (slot >= 0)[:, None] & (column < width)
    value = widen(tl.load(new + row[:, None] * width + column, there, 0.0))
    divisor = divisor_of(tl.abs(value))
    at = slot // size * block_step + slot % size * place_step + row % heads * head_step
    tl.store(pages + at[:, None] + column, coded(value, divisor), there)
    tl.store(scales + slot // size * s_block + slot % size * s_place + row % heads * s_head, divisor, slot >= 0)


@triton.jit
def latent_kernel(
    kv, weight, cos, sin, latents, ropes, slots, dim, rope, half, eps,
    INTERLEAVED: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """The latent of a token normed, its rotary key turned, both into the slot of the token."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        row, column = kv + token * (dim + rope), tl.arange(0, DIM)
        value = widen(tl.load(row + column, column < dim, 0.0))
        factor = inverse_root(tl.div_rn(sum_of(value * value, 0), dim.to(tl.float32)) + eps)
        normed = value * factor * widen(tl.load(weight + column, column < dim, 0.0))
        tl.store(latents + slot * dim + column, narrow(normed, latents.dtype.element_ty), column < dim)
        pair = tl.arange(0, HALF)
        there = pair < half
        first = 2 * pair if INTERLEAVED else pair
        second = first + 1 if INTERLEAVED else first + half
        c, s = tl.load(cos + token * half + pair, there, 0.0), tl.load(sin + token * half + pair, there, 0.0)
        a = widen(tl.load(row + dim + first, there, 0.0))
        b = widen(tl.load(row + dim + second, there, 0.0))
        a, b = turned(a, b, c, s)
        tl.store(ropes + slot * rope + first, narrow(a, ropes.dtype.element_ty), there)
        tl.store(ropes + slot * rope + second, narrow(b, ropes.dtype.element_ty), there)
        rest = 2 * half + tl.arange(0, ROPE)
        kept = rest < rope
        tl.store(ropes + slot * rope + rest, tl.load(row + dim + rest, kept, 0.0), kept)


def _write(pages: Tensor, new: Tensor, slots: Tensor, scales: Tensor | None = None) -> None:
    """New [tokens, heads, width] into pages [blocks, block_size, heads, width] whose heads are contiguous."""
    if pages.stride(-1) != 1:
        raise ValueError("pages must keep the elements of a head side by side")
    (tokens, heads, width), block = new.shape, power(new.shape[-1], 16)
    rows, height = tokens * heads, max(1, 1024 // block)
    given = new.contiguous(), slots.contiguous(), rows, pages.shape[1], heads, width, *pages.stride()[:3]
    how: dict[str, Any] = {"ROWS": height, "BLOCK": block}
    if scales is None:
        launch(write_kernel, (tiles(rows, height),), pages, *given, **how)
    else:
        launch(write_codes_kernel, (tiles(rows, height),), pages, scales, *given, *scales.stride(), **how)


@TRITON_KERNELS.register(ops.write_cache, name="triton_write_cache", dtypes=FLOATS, when=readable)
def write_cache(cache: TorchPagedKV, k: Tensor, v: Tensor, slots: Tensor) -> TorchPagedKV:
    pages, scales = cache.parts[:2], cache.parts[2:]
    for held, new, scale in zip(pages, (k, v), scales or (None, None), strict=True):
        _write(held, new, slots, scale)
    return cache


@TRITON_KERNELS.register(ops.write_latent_cache, name="triton_write_latent_cache", dtypes=FLOATS, when=readable)
def write_latent_cache(cache: TorchPagedLatent, latent: Tensor, rope: Tensor, slots: Tensor) -> TorchPagedLatent:
    _write(cache.latent[:, :, None], latent[:, None], slots)
    _write(cache.rope[:, :, None], rope[:, None], slots)
    return cache


@TRITON_KERNELS.register(ops.kv_norm_rope_cache, name="triton_kv_norm_rope_cache", dtypes=FLOATS, when=readable)
def kv_norm_rope_cache(
    kv: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: TorchPagedLatent,
    slots: Tensor,
    *,
    eps: float,
    interleaved: bool = False,
) -> TorchPagedLatent:
    dim, half = weight.shape[0], cos.shape[1]
    rope = kv.shape[1] - dim
    given = (x.contiguous() for x in (kv, weight, cos, sin))
    launch(
        latent_kernel, (kv.shape[0],), *given, cache.latent, cache.rope, slots.contiguous(), dim, rope, half, eps,
        INTERLEAVED=interleaved, DIM=power(dim, 16), HALF=power(half), ROPE=power(rope - 2 * half),
    )  # fmt: skip
    return cache
