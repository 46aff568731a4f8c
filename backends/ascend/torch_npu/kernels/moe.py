"""Choosing experts, sorting rows by expert, and the products of experts."""

from __future__ import annotations

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.hal.kernel import Condition
from xinheng.core.ir.dtype import int8
from xinheng.core.ir.graph import Node

from ...._torch.handles import TorchWeight
from .conditions import FLOATS, filled, shaped, weight_of

Tensor = torch.Tensor
TOP = 1024
"""The largest k of `npu_moe_gating_top_k_softmax`."""
EXPERTS = 2048
"""The most experts of `npu_moe_gating_top_k`, groups rounded up to 32."""
MOST = 10240
"""The most experts of `npu_moe_init_routing_v2`."""
INNER = 65536
"""Axes of grouped products are shorter than this."""


def register_moe(kernels: KernelRegistry) -> None:
    """Enter the kernels of generations with operators for experts."""
    _register_gating(kernels)

    @kernels.register(ops.moe_permute, name="npu_moe_init_routing_v2", when=_routable)
    def moe_permute(x: Tensor, experts: Tensor, *, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
        rows, order, counts = _routed(x, experts, num_experts, scatter=True)
        return rows, order, counts.to(torch.int32)

    @kernels.register(ops.moe_unpermute, name="npu_moe_finalize_routing", dtypes=FLOATS, when=_filled)
    def moe_unpermute(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
        return _combined(rows, torch.argsort(order), weights)

    @kernels.register(ops.grouped_linear, name="npu_grouped_matmul", dtypes=FLOATS, when=_stacks("weight"))
    def grouped_linear(x: Tensor, weight: TorchWeight, counts: Tensor) -> Tensor:
        return _multiplied(x, weight, counts.to(torch.int64))

    @kernels.register(ops.fused_moe, name="npu_fused_moe", dtypes=FLOATS, when=_stacks("gate", "up", "down"))
    def fused_moe(
        x: Tensor, weights: Tensor, experts: Tensor, gate: TorchWeight, up: TorchWeight, down: TorchWeight
    ) -> Tensor:
        rows, place, counts = _routed(x, experts, gate.shape[0], scatter=False)
        pair = torch.cat([_multiplied(rows, w, counts) for w in (gate, up)], -1)
        inner = torch.ops.npu.npu_swiglu(pair, -1)
        return _combined(_multiplied(inner, down, counts), place, weights)


def _register_gating(kernels: KernelRegistry) -> None:
    @kernels.register(ops.moe_gating_topk, name="npu_moe_gating_top_k_softmax", dtypes=FLOATS, when=_softmax)
    def by_softmax(
        logits: Tensor, *, k: int, score: str = "softmax", renormalise: bool = True, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        weights, experts, _ = torch.ops.npu.npu_moe_gating_top_k_softmax(logits.float(), None, k)
        if renormalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return (weights if scale == 1.0 else weights * scale), experts

    @kernels.register(ops.moe_gating_topk, name="npu_moe_gating_top_k", dtypes=FLOATS, when=_sigmoid)
    def by_sigmoid(
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
        weights, experts, _ = torch.ops.npu.npu_moe_gating_top_k(
            logits.float(),
            k,
            bias=None if bias is None else bias.float(),
            k_group=groups_kept,
            group_count=groups,
            group_select_mode=1 if group_score == "top2" else 0,
            norm_type=1,
            routed_scaling_factor=scale,
            eps=1e-20,
        )
        return weights, experts


def _routed(x: Tensor, experts: Tensor, count: int, *, scatter: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Rows sorted by expert, an index int32 [tokens * k], and int64 counts.

    With `scatter` the index says which flat choice (token * k + j) a row is, without it where a flat choice went.
    """
    rows, index, counts, _ = torch.ops.npu.npu_moe_init_routing_v2(
        x.contiguous(),
        experts.to(torch.int32).contiguous(),
        active_num=x.shape[0] * experts.shape[1],
        expert_num=count,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=[0, count],
        row_idx_type=1 if scatter else 0,
    )
    return rows, index, counts


def _multiplied(x: Tensor, weight: TorchWeight, counts: Tensor) -> Tensor:
    """Rows times the matrix of their expert, whose stack is transposed without a copy."""
    stack = weight.parts[0].data.reshape(weight.shape).transpose(1, 2)
    (made,) = torch.ops.npu.npu_grouped_matmul(
        [x.contiguous()], [stack], group_list=counts, split_item=3, group_type=0, group_list_type=1
    )
    result: Tensor = made
    return result


def _combined(rows: Tensor, place: Tensor, weights: Tensor) -> Tensor:
    """The weighted sums, in float32: the operator wants weights of the dtype of the rows."""
    columns = place.reshape(weights.shape).transpose(0, 1).reshape(-1).to(torch.int32)
    made: Tensor = torch.ops.npu.npu_moe_finalize_routing(rows.float(), None, None, None, weights, columns, None)
    return made.to(rows.dtype)


def _filled(node: Node) -> bool | str:
    return filled(*node.operands) or "does not take empty tensors"


def _routable(node: Node) -> bool | str:
    x = node.operand("x")
    assert x is not None
    if x.dtype not in FLOATS | {int8}:
        return f"moves float16, bfloat16, float32 and int8, not {x.dtype}"
    if node.attributes["num_experts"] > MOST:
        return f"takes at most {MOST} experts"
    return _filled(node)


def _softmax(node: Node) -> bool | str:
    if node.attributes["score"] != "softmax":
        return f"scores by softmax, not {node.attributes['score']}"
    if node.attributes["k"] > TOP:
        return f"chooses at most {TOP} experts"
    return _filled(node)


def _sigmoid(node: Node) -> bool | str:
    experts, groups = shaped(node, "logits")[1], node.attributes["groups"]
    assert isinstance(experts, int)
    size = experts // groups
    if node.attributes["score"] != "sigmoid" or not node.attributes["renormalise"]:
        return "scores by sigmoid and divides by the sum"
    if groups > 1 and size <= 2:
        return f"groups must have more than two experts, not {size}"
    if -(-size // 32) * 32 * groups > EXPERTS or experts > EXPERTS:
        return f"takes at most {EXPERTS} experts, groups rounded up to 32"
    return _filled(node)


def _stacks(*names: str) -> Condition:
    """A condition: the named weights are stacks of the dtype of x, of several experts."""

    def condition(node: Node) -> bool | str:
        x = node.operand("x")
        assert x is not None
        for name in names:
            kind = weight_of(node, name)
            if kind.scheme != x.dtype.name:
                return f"multiplies experts stored as {x.dtype}, not {kind.scheme}"
            if kind.shape[0] < 2 or max(kind.shape[1:]) >= INNER:
                return f"takes two experts or more of axes below {INNER}, not {list(kind.shape)}"
        return filled(x) or "does not take empty tensors"

    return condition
