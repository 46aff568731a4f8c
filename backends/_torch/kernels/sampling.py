"""Sampling kernels: the counter-based stream in 64-bit integer arithmetic, and inversion over sorted probabilities."""

from __future__ import annotations

import torch

from xinheng.core import ops
from xinheng.core.ops.sampling import MULTIPLIERS, WEYL

from .registry import TORCH_KERNELS

Tensor = torch.Tensor

_MASK = 0xFFFFFFFF


def _mulhilo(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """Upper and lower 32 bits of a 32 x 32 bit product; the wrap of int64 leaves both halves right."""
    product = a * b
    return (product >> 32) & _MASK, product & _MASK


@TORCH_KERNELS.register(ops.random_uniform, name="torch_random_uniform")
def random_uniform(seed: Tensor, counter: Tensor) -> Tensor:
    c0 = counter.to(torch.int64)
    c1 = c2 = c3 = torch.zeros_like(c0)
    k0, k1 = seed.to(torch.int64).unbind(-1)
    for _ in range(10):
        high0, low0 = _mulhilo(c0, MULTIPLIERS[0])
        high1, low1 = _mulhilo(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return (c0 >> 8).to(torch.float32) * 2.0**-24


@TORCH_KERNELS.register(ops.top_k_top_p_sample, name="torch_top_k_top_p_sample")
def top_k_top_p_sample(
    logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    greedy = temperature <= 0
    scaled = logits / torch.where(greedy, 1.0, temperature)[:, None]
    best, order = torch.sort(scaled, dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    allowed = (top_k[:, None] <= 0) | (rank < top_k[:, None])
    p = torch.softmax(best.masked_fill(~allowed, -torch.inf), dim=-1)
    before = torch.cumsum(p, dim=-1) - p
    inside = (before < top_p[:, None]) & (p >= min_p[:, None] * p[:, :1]) & allowed
    kept = torch.where(inside | (rank == 0), p, 0.0)
    running = torch.cumsum(kept, dim=-1)
    passed = (running <= uniform[:, None] * running[:, -1:]).sum(-1)
    chosen = torch.where(greedy, 0, torch.minimum(passed, (kept > 0).sum(-1) - 1).clamp(min=0))
    return torch.take_along_dim(order, chosen[:, None], dim=-1)[:, 0].to(torch.int32)


@TORCH_KERNELS.register(ops.rejection_sample, name="torch_rejection_sample")
def rejection_sample(
    draft_ids: Tensor, draft_probs: Tensor, target_probs: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    rows, drafts, size = draft_probs.shape
    real, index = draft_ids >= 0, draft_ids.clamp(min=0).long()[..., None]
    drafted = torch.take_along_dim(draft_probs, index, -1)[..., 0]
    wanted = torch.take_along_dim(target_probs[:, :drafts], index, -1)[..., 0]
    stays = real & (uniform[:, :drafts] * drafted < wanted)
    accepted = (torch.cumsum(~stays, 1) == 0).sum(1, keepdim=True)
    place = accepted[..., None].expand(rows, 1, size)
    taken = torch.where(real[..., None], draft_probs, 0.0)
    taken = torch.cat((taken, taken.new_zeros(rows, 1, size)), dim=1)
    target, spent = (torch.take_along_dim(x, place, 1)[:, 0] for x in (target_probs, taken))
    rest = (target - spent).clamp(min=0)
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, target)
    running = torch.cumsum(rest, dim=-1)
    passed = (running <= uniform[:, drafts:] * running[:, -1:]).sum(-1, keepdim=True)
    last = torch.where(rest > 0, torch.arange(size, device=rest.device), 0).amax(-1, keepdim=True)
    ids = torch.cat((draft_ids, draft_ids.new_full((rows, 1), -1)), dim=1)
    rank = torch.arange(drafts + 1, device=ids.device)
    ids = torch.where(rank < accepted, ids, torch.where(rank == accepted, torch.minimum(passed, last), -1))
    return ids.to(torch.int32), accepted[:, 0].to(torch.int32)
