"""Doubles of mixtures of experts."""

from __future__ import annotations

import torch

from ..._torch.emulation import require
from ..chips import Chip
from .nn import activated
from .rules import Tensor, floats, indices


def moe_softmax_topk(
    input: Tensor, topk: int, normalize: bool = False, num_expert_group: int = -1, topk_group: int = 0, *, chip: Chip
) -> tuple[Tensor, Tensor]:
    """Weights float32 and experts int32 of each token by softmax; groups by their best, the others score 0."""
    floats("moe_softmax_topk", chip, {"input": input})
    scores = torch.softmax(input.float(), -1)
    groups = (num_expert_group, topk_group, 1, 0.0)
    return _chosen("moe_softmax_topk", scores, scores, topk, normalize, *groups)


def moe_sigmoid_topk(
    input: Tensor, topk: int, normalize: bool = False, num_expert_group: int = -1, topk_group: int = 0,
    route_scale: float = 1.0, score_bias: Tensor | None = None, *, chip: Chip,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same by sigmoid; `score_bias` takes part in the choice only, and makes the best two count for a group."""
    op = "moe_sigmoid_topk"
    floats(op, chip, {"input": input})
    require(score_bias is None or score_bias.shape == input.shape[-1:], op, "score_bias is [experts]")
    scores = torch.sigmoid(input.float())
    choice = scores if score_bias is None else scores + score_bias.float()
    groups = (num_expert_group, topk_group, 1 if score_bias is None else 2, -torch.inf)
    weights, experts = _chosen(op, scores, choice, topk, normalize, *groups)
    return weights * route_scale, experts


def _chosen(
    op: str, scores: Tensor, choice: Tensor, k: int, normalise: bool, groups: int, kept: int, counted: int, rest: float
) -> tuple[Tensor, Tensor]:
    """The best k by choice, weighted by score; of groups those whose `counted` best add up to the most."""
    if groups > 1:
        require(choice.shape[-1] % groups == 0 and 0 < kept <= groups, op, "experts form groups of one size")
        inside = choice.reshape(choice.shape[0], groups, -1)
        require(inside.shape[-1] >= counted, op, f"groups have at least {counted} experts")
        value = inside.sort(-1, descending=True).values[..., :counted].sum(-1)
        best = torch.sort(value, dim=-1, descending=True, stable=True).indices[:, :kept]
        stays = torch.zeros_like(value, dtype=torch.bool).scatter_(1, best, True)
        choice = inside.masked_fill(~stays[..., None], rest).reshape(choice.shape)
    experts = torch.sort(choice, dim=-1, descending=True, stable=True).indices[:, :k]
    weights = torch.gather(scores, -1, experts)
    weights = weights / weights.sum(-1, keepdim=True) if normalise else weights
    return weights, experts.to(torch.int32)


def moe_gen_idx(expert_id: Tensor, expert_num: int, *, chip: Chip) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The token of each sorted row, the row of each choice, rows per expert, and where the rows of experts start."""
    indices("moe_gen_idx", expert_id=expert_id)
    flat = expert_id.reshape(-1).long()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=expert_num)
    ends = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    made = (order // max(expert_id.shape[-1], 1), torch.argsort(order), counts, ends)
    return tuple(t.to(torch.int32) for t in made)  # type: ignore[return-value]


def moe_expand_input(
    input: Tensor, gather_idx: Tensor, cusum_token_count: Tensor | None = None, start_expert_id: int = 0,
    expert_size: int = 0, *, chip: Chip,
) -> Tensor:  # fmt: skip
    """Rows of tokens by the first result of `moe_gen_idx`."""
    floats("moe_expand_input", chip, {"input": input})
    indices("moe_expand_input", gather_idx=gather_idx, cusum_token_count=cusum_token_count)
    return input[gather_idx.long()]


def group_gemm(
    a: Tensor, b: Tensor, m_list: Tensor, expand_idx: Tensor | None, c: Tensor | None, alpha: Tensor | None,
    beta: Tensor | None, max_m: int, *, chip: Chip,
) -> Tensor:  # fmt: skip
    """Rows of each expert times its weight [n, k]; no expert has more than `max_m` rows."""
    op = "group_gemm"
    floats(op, chip, {"a": a, "b": b})
    indices(op, m_list=m_list)
    require(b.dim() == 3 and m_list.shape == b.shape[:1] and a.shape[1] == b.shape[2], op, "b is [experts, n, k]")
    require(expand_idx is None and c is None, op, "the double takes sorted rows and adds nothing")
    counts = m_list.tolist()
    require(
        sum(counts) == a.shape[0] and max(counts, default=0) <= max_m,
        op,
        "m_list must add up to the rows, none above max_m",
    )
    pieces = [rows.double() @ w.double().T for rows, w in zip(torch.split(a, counts), b, strict=True)]
    return torch.cat(pieces).to(a.dtype)


def moe_active(
    input: Tensor, act_mode: str, is_gated: bool, output: Tensor | None = None, bias: Tensor | None = None,
    cusum_token_count: Tensor | None = None, start_expert_id: int = 0, expert_size: int = 0, *, chip: Chip,
) -> Tensor:  # fmt: skip
    """An activation of the rows of experts, of the first half times the second half if gated."""
    floats("moe_active", chip, {"input": input})
    require(act_mode in ("silu", "gelu"), "moe_active", f"there is no activation {act_mode!r}")
    require(output is None and bias is None, "moe_active", "the double makes its output and adds no bias")
    return activated("moe_active", input.double(), act_mode, is_gated).to(input.dtype)


def moe_combine_result(
    input: Tensor, reduce_weight: Tensor, gather_ids: Tensor, residual: Tensor | None, cusum_token_count: Tensor | None,
    start_expert_id: int, expert_size: int, bias: Tensor | None = None, *, chip: Chip,
) -> Tensor:  # fmt: skip
    """The weighted sum of the rows of each token; `gather_ids` is the second result of `moe_gen_idx`."""
    op = "moe_combine_result"
    floats(op, chip, {"input": input, "residual": residual})
    indices(op, gather_ids=gather_ids, cusum_token_count=cusum_token_count)
    require(reduce_weight.dtype is torch.float32, op, "reduce_weight must be float32")
    chosen = input.double()[gather_ids.long()].reshape(*reduce_weight.shape, input.shape[-1])
    total = torch.zeros_like(chosen[:, 0])
    for j in range(chosen.shape[1]):
        total = total + chosen[:, j] * reduce_weight[:, j : j + 1].double()
    return (total if residual is None else total + residual.double()).to(input.dtype)
