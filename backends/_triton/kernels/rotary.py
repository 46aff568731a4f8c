"""Rotary position embedding of the first elements of each head, in either pairing."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from xinheng.core import ops

from ..launch import launch, power, tiles
from .registry import FLOATS, TRITON_KERNELS
from .scalar import device, narrow, widen

Tensor = torch.Tensor


@device
def turned(a, b, cos, sin):
    """A pair (a, b) turned by an angle."""
    return a * cos - b * sin, b * cos + a * sin


@triton.jit(do_not_specialize=["pairs"])
def rotary_kernel(
    x, cos, sin, out, pairs, heads, width, half,
    INTERLEAVED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Heads of tokens, one per row; `pairs` counts them. `BLOCK` covers half the turned elements, `REST` the others."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    there = (row < pairs) & (column < half)
    angle = row // heads * half + column
    c, s = tl.load(cos + angle, there, 0.0), tl.load(sin + angle, there, 0.0)
    first = row * width + (2 * column if INTERLEAVED else column)
    second = first + (1 if INTERLEAVED else half)
    a, b = widen(tl.load(x + first, there, 0.0)), widen(tl.load(x + second, there, 0.0))
    a, b = turned(a, b, c, s)
    tl.store(out + first, narrow(a, out.dtype.element_ty), there)
    tl.store(out + second, narrow(b, out.dtype.element_ty), there)
    if REST > 0:
        rest = 2 * half + tl.arange(0, REST)[None, :]
        kept = (row < pairs) & (rest < width)
        tl.store(out + row * width + rest, tl.load(x + row * width + rest, kept, 0.0), kept)


@TRITON_KERNELS.register(ops.rotary_embedding, name="triton_rotary_embedding", dtypes=FLOATS)
def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    whole, (tokens, heads, width), half = x.contiguous(), x.shape, cos.shape[-1]
    out, block = torch.empty_like(whole), power(half, 16)
    rows = max(1, 1024 // block)
    launch(
        rotary_kernel, (tiles(tokens * heads, rows),), whole, cos.contiguous(), sin.contiguous(), out, tokens * heads,
        heads, width, half, INTERLEAVED=interleaved, ROWS=rows, BLOCK=block,
        REST=power(width - 2 * half) if width > 2 * half else 0,
    )  # fmt: skip
    return out
