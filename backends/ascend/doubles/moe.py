"""Doubles of the operators around experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .rules import FLOATS, FUSED, demand, demand_contiguous, demand_dtype, demand_transposable, double

Tensor = torch.Tensor
INNER = 65536


def _best(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, order = torch.sort(x, dim=-1, descending=True, stable=True)
    return values[..., :k], order[..., :k]


@double("npu::npu_moe_gating_top_k_softmax", FUSED)
def npu_moe_gating_top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    name = "npu_moe_gating_top_k_softmax"
    demand_dtype(name, "x", x, FLOATS)
    demand(name, x.dim() == 2 and finished is None, "this double takes [rows, experts] without finished rows")
    demand(name, 0 < k <= min(x.shape[1], 1024), f"k must be 1 to {min(x.shape[1], 1024)}")
    weights, experts = _best(torch.softmax(x.double(), -1), k)
    rows = torch.arange(x.shape[0] * k, dtype=torch.int32).reshape(k, -1).T.contiguous()
    return weights.to(x.dtype), experts.int(), rows


@double("npu::npu_moe_gating_top_k", FUSED)
def npu_moe_gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    input_ids: Tensor | None = None,
    tid2eid: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    name = "npu_moe_gating_top_k"
    demand_dtype(name, "x", x, FLOATS)
    demand(name, x.dim() == 2 and x.shape[1] <= 2048, "x must be [rows, at most 2048 experts]")
    demand(name, input_ids is tid2eid is None and renorm == 0, "renorm must be 0")
    demand(name, bias is None or (bias.dtype is x.dtype and bias.shape == x.shape[1:]), "bias must be like a row of x")
    experts = x.shape[1]
    demand(name, group_count > 0 and experts % group_count == 0, "experts must form groups of equal size")
    size = experts // group_count
    demand(name, group_count == 1 or size > 2, "a group must have more than two experts")
    demand(name, -(-size // 32) * 32 * group_count <= 2048, "groups padded to 32 must have at most 2048 experts")
    demand(name, 1 <= k_group <= group_count and 1 <= k <= k_group * size, "k is larger than the groups kept")
    scores = torch.sigmoid(x.double()) if norm_type == 1 else torch.softmax(x.double(), -1)
    choice = scores if bias is None else scores + bias.double()
    if group_count > 1:
        inside = choice.reshape(-1, group_count, size)
        value = _best(inside, 2 if group_select_mode == 1 else 1)[0].sum(-1)
        kept = torch.zeros_like(value, dtype=torch.bool).scatter_(-1, _best(value, k_group)[1], True)
        choice = inside.masked_fill(~kept[..., None], -torch.inf).flatten(1)
    chosen = _best(choice, k)[1]
    weights = scores.gather(-1, chosen)
    if norm_type == 1:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    return (weights * routed_scaling_factor).to(x.dtype), chosen.int(), scores.float()


@double("npu::npu_moe_init_routing_v2", FUSED)
def npu_moe_init_routing_v2(
    x: Tensor,
    expert_idx: Tensor,
    *,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    name = "npu_moe_init_routing_v2"
    demand(name, x.dim() == 2 and x.dtype in (*FLOATS, torch.int8), "x must be a float or int8 matrix")
    demand(name, expert_idx.dtype is torch.int32 and expert_idx.dim() == 2, "expert_idx must be int32 [rows, k]")
    demand(name, expert_idx.shape[0] == x.shape[0], "x and expert_idx must have the same rows")
    demand(name, 0 < expert_num <= 10240, "expert_num must be 1 to 10240")
    demand(name, drop_pad_mode == 0 and expert_tokens_num_flag, "drop_pad_mode must be 0, expert_tokens_num_flag True")
    demand(name, expert_tokens_num_type == 1, "this double counts (expert_tokens_num_type 1)")
    demand(name, quant_mode == -1 and scale is offset is None, "this double does not quantise")
    demand(name, list(active_expert_range) == [0, expert_num], "this double routes to all experts")
    demand(name, row_idx_type in (0, 1), "row_idx_type must be 0 or 1")
    flat = expert_idx.flatten().long()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=expert_num)
    index = order if row_idx_type == 1 else torch.argsort(order)
    return x[order // expert_idx.shape[1]], index.int(), counts, torch.full((flat.numel(),), torch.nan)


@double("npu::npu_grouped_matmul", FUSED)
def npu_grouped_matmul(
    x: list[Tensor],
    weight: list[Tensor],
    *,
    bias: list[Tensor] | None = None,
    group_list: Tensor | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    **others: object,
) -> list[Tensor]:
    name = "npu_grouped_matmul"
    demand(
        name, not any(value is not None for value in others.values()) and not act_type, "this double only multiplies"
    )
    demand(name, len(x) == len(weight) == 1 and bias is None, "this double takes one x and one stack of weights")
    rows, stack = x[0], weight[0]
    demand_dtype(name, "x", rows, FLOATS)
    demand(name, rows.dtype is stack.dtype, "x and weight must have one dtype")
    demand(name, rows.dim() == 2 and stack.dim() == 3 and rows.shape[1] == stack.shape[1], "x [m, k] needs [e, k, n]")
    demand_contiguous(name, x=rows)
    demand_transposable(name, "weight", stack)
    demand(name, max(*stack.shape[1:]) < INNER, f"k and n must be below {INNER}")
    demand(name, group_list is not None and group_list.dtype is torch.int64, "group_list must be an int64 tensor")
    assert group_list is not None
    demand(name, tuple(group_list.shape) == stack.shape[:1], "group_list must have one element per weight")
    demand(name, split_item in (2, 3) and group_type == 0, "one result needs split_item 2 or 3 and group_type 0")
    demand(name, group_list_type in (0, 1), "group_list_type must be 0 (running sums) or 1 (counts)")
    demand(name, group_list_type == 0 or group_list.numel() > 1, "counts of one group are refused")
    ends = group_list if group_list_type == 0 else torch.cumsum(group_list, 0)
    demand(name, int(ends[-1]) <= rows.shape[0], f"groups end at {int(ends[-1])} of {rows.shape[0]} rows")
    out, start = torch.full((rows.shape[0], stack.shape[2]), torch.nan, dtype=rows.dtype), 0
    for matrix, end in zip(stack, ends.tolist(), strict=True):
        demand(name, end >= start, "group_list must not descend")
        out[start:end] = (rows[start:end].double() @ matrix.double()).to(rows.dtype)
        start = end
    return [out]


@double("npu::npu_moe_finalize_routing", FUSED)
def npu_moe_finalize_routing(
    expanded_permuted_rows: Tensor,
    skip1: Tensor | None,
    skip2: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    expanded_src_to_dst_row: Tensor,
    export_for_source_row: Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> Tensor:
    name, rows = "npu_moe_finalize_routing", expanded_permuted_rows
    demand_dtype(name, "expanded_permuted_rows", rows, FLOATS)
    demand(name, drop_pad_mode == 0 and skip1 is skip2 is bias is None, "this double only weighs and adds")
    demand(name, scales is not None and scales.dtype is rows.dtype, "scales must have the dtype of the rows")
    assert scales is not None
    tokens, each = scales.shape
    index = expanded_src_to_dst_row
    fits = index.dtype is torch.int32 and index.dim() == 1 and index.numel() == tokens * each == rows.shape[0]
    demand(name, fits, "expanded_src_to_dst_row must be int32 [tokens * k], as many as rows")
    total = torch.zeros((tokens, rows.shape[1]))
    for j in range(each):
        total = total + scales[:, j : j + 1].double() * rows[index[j * tokens : (j + 1) * tokens].long()].double()
    return total.to(rows.dtype)
