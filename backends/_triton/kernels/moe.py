"""Mixtures of experts: gating, and the networks of the chosen experts without a row being moved."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from xinheng.core import ops

from ..._torch.handles import TorchWeight
from ..launch import launch, power, tiles
from .gated import gated
from .linear import multiply, one_part, starts_of
from .registry import FLOATS, TRITON_KERNELS
from .scalar import device, exp, max_of, min_of, narrow, sigmoid, sum_of, widen
from .weights import parts_of

Tensor = torch.Tensor

NOTHING = tl.constexpr(-3.0e38)
"""Less than any choice: what has been taken, or stands for no expert."""


@device
def first_of(x, best, index):
    """The place of an element in each row, the lowest of equal ones."""
    return min_of(tl.where(x == best[:, None], index, 2147483647), 1)


@triton.jit(do_not_specialize=["rows"])
def gating_kernel(
    logits, bias, weights, chosen, rows, experts, scale,
    K: tl.constexpr, SIGMOID: tl.constexpr, RENORMALISE: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr,
    TOP2: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The K best experts of each token, one after the other, with their weights."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    expert = tl.arange(0, BLOCK)[None, :]
    there = (row < rows)[:, None] & (expert < experts)
    x = widen(tl.load(logits + row[:, None] * experts + expert, there, float("-inf")))
    if SIGMOID:
        scores = tl.where(there, sigmoid(x), 0.0)
    else:
        top = max_of(tl.where(there, x, NOTHING), 1)[:, None]
        p = tl.where(there, exp(x - top), 0.0)
        scores = tl.div_rn(p, sum_of(p, 1)[:, None])
    choice = scores
    if bias is not None:
        choice += widen(tl.load(bias + expert, expert < experts, 0.0))
    choice = tl.where(there, choice, NOTHING)
    if GROUPS > 1:
        group = tl.arange(0, BLOCK_G)[None, :]
        size = experts // GROUPS
        values = tl.full((ROWS, BLOCK_G), NOTHING, tl.float32)
        for g in range(GROUPS):
            inside = tl.where((expert // size == g) & there, choice, NOTHING)
            best = max_of(inside, 1)
            if TOP2:
                place = first_of(inside, best, expert)
                best += max_of(tl.where(expert == place[:, None], NOTHING, inside), 1)
            values = tl.where(group == g, best[:, None], values)
        kept = tl.full((ROWS, BLOCK), 0, tl.int32)
        for _ in range(KEPT):
            place = first_of(values, max_of(values, 1), group)
            values = tl.where(group == place[:, None], NOTHING, values)
            kept = tl.where(expert // size == place[:, None], 1, kept)
        choice = tl.where(kept == 1, choice, NOTHING)
    slot = tl.arange(0, BLOCK_K)[None, :]
    found = tl.full((ROWS, BLOCK_K), 0, tl.float32)
    places = tl.full((ROWS, BLOCK_K), 0, tl.int32)
    for k in range(K):
        place = first_of(choice, max_of(choice, 1), expert)
        score = sum_of(tl.where(expert == place[:, None], scores, 0.0), 1)
        found = tl.where(slot == k, score[:, None], found)
        places = tl.where(slot == k, place[:, None], places)
        choice = tl.where(expert == place[:, None], 2.0 * NOTHING, choice)
    if RENORMALISE:
        found = tl.div_rn(found, sum_of(found, 1)[:, None] + 1e-20)
    to = row[:, None] * K + slot
    stored = (row < rows)[:, None] & (slot < K)
    tl.store(weights + to, found * scale, stored)
    tl.store(chosen + to, places, stored)


@TRITON_KERNELS.register(ops.moe_gating_topk, name="triton_moe_gating_topk", dtypes=FLOATS)
def moe_gating_topk(
    logits: Tensor,
    bias: Tensor | None = None,
    *,
    k: int,
    score: str = "softmax",
    renormalise: bool = True,
    scale: float = 1.0,
    groups: int = 1,
    groups_kept: int = 1,
    group_score: str = "top2",
) -> tuple[Tensor, Tensor]:
    rows, experts = logits.shape
    weights = torch.empty((rows, k), dtype=torch.float32, device=logits.device)
    chosen, block = torch.empty((rows, k), dtype=torch.int32, device=logits.device), power(experts, 16)
    height = max(1, 2048 // block)
    launch(
        gating_kernel, (tiles(rows, height),), logits.contiguous(), None if bias is None else bias.contiguous(),
        weights, chosen, rows, experts, scale, K=k, SIGMOID=score == "sigmoid", RENORMALISE=renormalise, GROUPS=groups,
        KEPT=groups_kept, TOP2=group_score == "top2", ROWS=height, BLOCK=block, BLOCK_G=power(groups, 2),
        BLOCK_K=power(k, 2),
    )  # fmt: skip
    return weights, chosen


def sorted_by_expert(experts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Flat choices in the order of their experts, int32 [choices], and how many each expert has, int32 [experts]."""
    flat = experts.reshape(-1)
    order = torch.argsort(flat, stable=True)
    counts = torch.zeros(count, dtype=torch.int32, device=flat.device)
    counts.scatter_add_(0, flat.long(), torch.ones_like(flat, dtype=torch.int32))
    return order.to(torch.int32), counts


@TRITON_KERNELS.register(ops.moe_permute, name="torch_moe_permute_in_queue", dtypes=FLOATS)
def moe_permute(x: Tensor, experts: Tensor, *, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    # that of plain torch counts by an op that waits for the device
    order, counts = sorted_by_expert(experts, num_experts)
    return x[(order // experts.shape[1]).long()], order, counts


@triton.jit(do_not_specialize=["tokens"])
def unpermute_kernel(
    rows, place, weights, out, tokens, width, CHOICES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """The weighted sum of the rows of each token, choice by choice."""
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = (token < tokens)[:, None] & (column < width)[None, :]
    total = tl.full((ROWS, BLOCK), 0, tl.float32)
    for j in range(CHOICES):
        source = tl.load(place + token * CHOICES + j, token < tokens, 0).to(tl.int64)
        weight = tl.load(weights + token * CHOICES + j, token < tokens, 0.0)
        total += widen(tl.load(rows + source[:, None] * width + column[None, :], there, 0.0)) * weight[:, None]
    tl.store(out + token[:, None] * width + column[None, :], narrow(total, out.dtype.element_ty), there)


@TRITON_KERNELS.register(ops.moe_unpermute, name="triton_moe_unpermute", dtypes=FLOATS)
def moe_unpermute(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    (tokens, choices), width = weights.shape, rows.shape[-1]
    place = torch.empty_like(order, dtype=torch.int32)
    place[order.long()] = torch.arange(order.numel(), dtype=torch.int32, device=order.device)
    out, block = torch.empty((tokens, width), dtype=rows.dtype, device=rows.device), power(width, 16, 1024)
    height = max(1, 1024 // block)
    launch(
        unpermute_kernel, (tiles(tokens, height), tiles(width, block)), rows.contiguous(), place, weights.contiguous(),
        out, tokens, width, CHOICES=choices, ROWS=height, BLOCK=block,
    )  # fmt: skip
    return out


@TRITON_KERNELS.register(ops.fused_moe, name="triton_fused_moe", dtypes=FLOATS, when=one_part)
def fused_moe(
    x: Tensor, weights: Tensor, experts: Tensor, gate: TorchWeight, up: TorchWeight, down: TorchWeight
) -> Tensor:
    count, inner, width = gate.shape
    order, counts = sorted_by_expert(experts, count)
    whole, starts, choices = x.contiguous(), starts_of(counts), experts.shape[1]

    def made(columns: int) -> Tensor:
        return torch.empty((order.numel(), columns), dtype=x.dtype, device=x.device)

    lifted, gates, rows = made(inner), made(inner), made(width)
    multiply(whole, parts_of(gate)[0], None, gates, starts, order, choices)
    multiply(whole, parts_of(up)[0], None, lifted, starts, order, choices)
    multiply(gated(gates, lifted, "silu"), parts_of(down)[0], None, rows, starts)
    return moe_unpermute(rows, order, weights)
