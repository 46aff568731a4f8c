"""Mixtures of experts: gating, sorting by expert, and one product per expert."""

from __future__ import annotations

from collections.abc import Callable

import torch

from xinheng.core import ops

from ..handles import TorchWeight
from .contraction import linear
from .elementwise import sigmoid, wide
from .registry import FLOATS, TORCH_KERNELS, calculated

Tensor = torch.Tensor


def stable_topk(x: Tensor, k: int) -> Tensor:
    """Indices of the k largest along the last axis, equal ones by index."""
    return torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :k]


@TORCH_KERNELS.register(ops.moe_gating_topk, name="torch_moe_gating_topk", dtypes=FLOATS)
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
    scores = torch.softmax(wide(logits), dim=-1) if score == "softmax" else sigmoid(wide(logits))
    choice = scores if bias is None else scores + bias.to(scores.dtype)
    if groups > 1:
        inside = choice.reshape(choice.shape[0], groups, choice.shape[1] // groups)
        best = torch.topk(inside, 2 if group_score == "top2" else 1, dim=-1).values.sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, stable_topk(best, groups_kept), True)
        choice = inside.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
    experts = stable_topk(choice, k)
    weights = torch.gather(scores, -1, experts)
    if renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return (weights * scale).float(), experts.to(torch.int32)


@TORCH_KERNELS.register(ops.moe_permute, name="torch_moe_permute", when=calculated)
def moe_permute(x: Tensor, experts: Tensor, *, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    flat = experts.reshape(-1).long()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=num_experts)
    return x[order // experts.shape[1]], order.to(torch.int32), counts.to(torch.int32)


@TORCH_KERNELS.register(ops.moe_unpermute, name="torch_moe_unpermute", dtypes=FLOATS)
def moe_unpermute(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    chosen = torch.empty_like(rows)
    chosen[order.long()] = rows
    chosen = wide(chosen.view(*weights.shape, rows.shape[-1]))
    total = chosen[:, 0] * weights[:, :1]
    for j in range(1, weights.shape[1]):
        total = total + chosen[:, j] * weights[:, j : j + 1]
    return total.to(rows.dtype)


def grouped_linear_kernel(linear: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The kernel of `grouped_linear`: the rows of each group through a kernel of `linear`."""

    def grouped_linear(x: Tensor, weight: TorchWeight, counts: Tensor) -> Tensor:
        out = torch.empty((x.shape[0], weight.shape[1]), dtype=x.dtype, device=x.device)
        start = 0
        for group, count in zip(weight.groups, counts.tolist(), strict=True):
            if count:
                out[start : start + count] = linear(x[start : start + count], group)
                start += count
        return out

    return grouped_linear


TORCH_KERNELS.register(ops.grouped_linear, name="torch_grouped_linear", dtypes=FLOATS)(grouped_linear_kernel(linear))
