"""Choosing tokens: the largest logit, the uniform stream, and sampling by inversion over sorted logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from xinheng.core import ops
from xinheng.core.ir.graph import Node
from xinheng.core.ops.sampling import MULTIPLIERS, WEYL

from ..launch import launch, power, tiles
from .registry import FLOATS, TRITON_KERNELS
from .scalar import cumsum_of, device, exp, max_of, min_of, sum_of, widen

Tensor = torch.Tensor

M0, M1 = tl.constexpr(MULTIPLIERS[0]), tl.constexpr(MULTIPLIERS[1])
W0, W1 = tl.constexpr(WEYL[0]), tl.constexpr(WEYL[1])


@triton.jit(do_not_specialize=["rows"])
def argmax_kernel(x, out, rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The place of the first largest element of each row; a NaN is larger than any number."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    base = x + row.to(tl.int64)[:, None] * width
    best = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)
    place = tl.full((ROWS, BLOCK), 2147483647, tl.int32)
    for start in range(0, width, BLOCK):
        column = (start + tl.arange(0, BLOCK))[None, :]
        there = (row < rows)[:, None] & (column < width)
        value = widen(tl.load(base + column, there, float("-inf")))
        # the first element of a lane wins over none, a larger one over a smaller one, a NaN over a number
        better = there & ((value > best) | ((value != value) & (best == best)) | (place == 2147483647))
        place = tl.where(better, column, place)
        best = tl.where(better, value, best)
    wrong = best != best
    highest = max_of(tl.where(wrong, float("-inf"), best), 1)
    number = min_of(tl.where(best == highest[:, None], place, 2147483647), 1)
    nothing = min_of(tl.where(wrong, place, 2147483647), 1)
    tl.store(out + row, tl.where(nothing < 2147483647, nothing, number), row < rows)


def _last_axis(node: Node) -> bool | str:
    x = node.operands[0]
    last = x is not None and node.attributes["axis"] % x.tensor.rank == x.tensor.rank - 1
    return (last and x is not None and x.tensor.dtype in FLOATS) or "takes the last axis of floats"


@TRITON_KERNELS.register(ops.argmax, name="triton_argmax", dtypes=FLOATS, when=_last_axis)
def argmax(x: Tensor, *, axis: int = -1) -> Tensor:
    out = torch.empty(x.shape[:-1], dtype=torch.int32, device=x.device)
    rows, width = out.numel(), x.shape[-1]
    block = power(width, 16, 2048)
    height = max(1, 1024 // block)
    launch(argmax_kernel, (tiles(rows, height),), x.contiguous(), out, rows, width, ROWS=height, BLOCK=block)
    return out


@device
def word_at(words, there):
    """Words of 32 bits that are stored as int32, as they are."""
    return tl.load(words, there, 0).to(tl.uint32, bitcast=True).to(tl.uint64)


@triton.jit(do_not_specialize=["rows"])
def uniform_kernel(seed, counter, out, rows, BLOCK: tl.constexpr):
    """The first word of Philox4x32-10, its upper 24 bits times 2^-24."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = row < rows
    c0 = word_at(counter + row, there)
    c1, c2, c3 = c0 * 0, c0 * 0, c0 * 0
    k0, k1 = word_at(seed + 2 * row, there), word_at(seed + 2 * row + 1, there)
    for _ in tl.static_range(10):
        first, second = c0 * M0, c2 * M1
        c0, c2 = (second >> 32) ^ c1 ^ k0, (first >> 32) ^ c3 ^ k1
        c1, c3 = second & 0xFFFFFFFF, first & 0xFFFFFFFF
        k0, k1 = (k0 + W0) & 0xFFFFFFFF, (k1 + W1) & 0xFFFFFFFF
    tl.store(out + row, (c0 >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08, there)


@TRITON_KERNELS.register(ops.random_uniform, name="triton_random_uniform")
def random_uniform(seed: Tensor, counter: Tensor) -> Tensor:
    rows = counter.shape[0]
    out, block = torch.empty(rows, dtype=torch.float32, device=counter.device), power(rows, 16, 256)
    words = (x.contiguous().view(torch.int32) for x in (seed, counter))
    launch(uniform_kernel, (tiles(rows, block),), *words, out, rows, BLOCK=block)
    return out


@device
def nucleus_of(p, rank, before, size, limit, nucleus, least):
    """The probabilities that are kept of some ranks [rows, ranks], 0 for others; `before` is the sum ahead of them."""
    ahead = before[:, None] + cumsum_of(p, 1) - p
    inside = (ahead < nucleus) & (p >= least) & (rank < limit) & (rank < size)
    return tl.where(inside | (rank == 0), p, 0.0)


@triton.jit(do_not_specialize=["rows"])
def sample_kernel(
    best, order, uniform, temperature, top_k, top_p, min_p, out, rows, size, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """One token per row of logits that are sorted in descending order and divided by their temperature.

    Passes over a row: the sum of exponentials, the sum of those that are kept, and where the running sum passes uniform
    times that. Sums run over blocks in order, so that they are the same in each pass.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    used = row < rows
    limit = tl.load(top_k + row, used, 0)
    limit = tl.where(limit <= 0, size, limit)[:, None]
    nucleus, least = tl.load(top_p + row, used, 1.0)[:, None], tl.load(min_p + row, used, 0.0)[:, None]
    top = tl.load(best + row * size, used, 0.0)[:, None]
    total = tl.full((ROWS,), 0, tl.float32)
    for start in range(0, size, BLOCK):
        rank = (start + tl.arange(0, BLOCK))[None, :]
        x = tl.load(best + row[:, None] * size + rank, used[:, None] & (rank < size), float("-inf"))
        total += sum_of(tl.where((rank < limit) & (rank < size), exp(x - top), 0.0), 1)
    whole = tl.full((ROWS,), 0, tl.float32)
    before, last = tl.full((ROWS,), 0, tl.float32), tl.full((ROWS,), 0, tl.int32)
    first = tl.div_rn(tl.full((ROWS,), 1.0, tl.float32), total)[:, None]
    for start in range(0, size, BLOCK):
        rank = (start + tl.arange(0, BLOCK))[None, :]
        x = tl.load(best + row[:, None] * size + rank, used[:, None] & (rank < size), float("-inf"))
        p = tl.div_rn(tl.where((rank < limit) & (rank < size), exp(x - top), 0.0), total[:, None])
        kept = nucleus_of(p, rank, before, size, limit, nucleus, least * first)
        whole += sum_of(kept, 1)
        last = tl.maximum(last, max_of(tl.where(kept > 0, rank, 0), 1))
        before += sum_of(p, 1)
    goal = tl.load(uniform + row, used, 0.0) * whole
    before, running = tl.full((ROWS,), 0, tl.float32), tl.full((ROWS,), 0, tl.float32)
    passed = tl.full((ROWS,), 0, tl.int32)
    for start in range(0, size, BLOCK):
        rank = (start + tl.arange(0, BLOCK))[None, :]
        x = tl.load(best + row[:, None] * size + rank, used[:, None] & (rank < size), float("-inf"))
        p = tl.div_rn(tl.where((rank < limit) & (rank < size), exp(x - top), 0.0), total[:, None])
        kept = nucleus_of(p, rank, before, size, limit, nucleus, least * first)
        sums = running[:, None] + cumsum_of(kept, 1)
        passed += sum_of(((sums <= goal[:, None]) & (rank < size)).to(tl.int32), 1)
        running += sum_of(kept, 1)
        before += sum_of(p, 1)
    greedy = tl.load(temperature + row, used, 0.0) <= 0
    chosen = tl.where(greedy, 0, tl.maximum(tl.minimum(passed, last), 0))
    tl.store(out + row, tl.load(order + row * size + chosen, used, 0).to(tl.int32), used)


@TRITON_KERNELS.register(ops.top_k_top_p_sample, name="triton_top_k_top_p_sample")
def top_k_top_p_sample(
    logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    rows, size = logits.shape
    scaled = logits / torch.where(temperature <= 0, 1.0, temperature)[:, None]
    best, order = torch.sort(scaled, dim=-1, descending=True, stable=True)
    out, block = torch.empty(rows, dtype=torch.int32, device=logits.device), power(size, 16, 2048)
    height = max(1, 2048 // block)
    columns = (x.contiguous() for x in (uniform, temperature, top_k, top_p, min_p))
    launch(sample_kernel, (tiles(rows, height),), best, order, *columns, out, rows, size, ROWS=height, BLOCK=block)
    return out
