"""Commands of mixtures of experts."""

from __future__ import annotations

from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import WeightType

from ..program import Argument, NotPlannable, Planner
from .encoder import encodes, matrix_of, operands_of, require_int32

MOST_JOBS = 8
"""`MOST_EXPERT_JOBS` in csrc/moe_product.h."""


@encodes("native_moe_gating_topk")
def gating(plan: Planner, node: Node) -> None:
    (logits,) = operands_of(node, "logits")
    bias, attributes = node.operand("bias"), node.attributes
    tokens, stride = matrix_of(plan, logits)
    weights, chosen = node.results
    plan.command(
        "gating",
        node,
        plan.address(logits),
        plan.address(bias),
        plan.result(weights),
        plan.result(chosen),
        *map(plan.number, (tokens, logits.shape[1], stride)),
        *(plan.number(attributes[name]) for name in ("k", "groups", "groups_kept")),
        plan.number(float(attributes["scale"])),
        plan.type_code(logits),
        plan.type_code(bias),
        plan.number(attributes["score"] == "sigmoid"),
        plan.number(attributes["renormalise"]),
        plan.number(attributes["group_score"] == "top2"),
    )


@encodes("native_moe_permute")
def permute(plan: Planner, node: Node) -> None:
    x, experts = operands_of(node, "x", "experts")
    require_int32(plan, experts)
    rows, order, counts = node.results
    size = x.dtype.bits // 8
    _, stride = matrix_of(plan, x)
    plan.command(
        "permute",
        node,
        plan.address(x),
        *map(plan.number, (stride * size, x.shape[1] * size)),
        plan.address(experts),
        *map(plan.number, (*experts.shape, node.attributes["num_experts"])),
        plan.result(rows),
        plan.result(order),
        plan.result(counts),
    )


@encodes("native_moe_unpermute")
def unpermute(plan: Planner, node: Node) -> None:
    rows, order, weights = operands_of(node, "rows", "order", "weights")
    require_int32(plan, order)
    if not (plan.place(rows).contiguous and plan.place(weights).contiguous):
        raise NotPlannable("moe_unpermute of a view")
    plan.command(
        "unpermute",
        node,
        plan.address(rows),
        plan.type_code(rows),
        plan.address(order),
        plan.address(weights),
        *map(plan.number, (*weights.shape, rows.shape[1])),
        plan.result(node.results[0]),
    )


@encodes("native_grouped_linear")
def grouped_linear(plan: Planner, node: Node) -> None:
    _grouped(plan, node, tiled=False)


@encodes("native_grouped_linear_int8")
def grouped_tiles(plan: Planner, node: Node) -> None:
    _grouped(plan, node, tiled=True)


def _grouped(plan: Planner, node: Node, *, tiled: bool) -> None:
    """With it all later products of the same rows and of the same shape, so that experts are walked over once."""
    x, _, counts = operands_of(node, "x", "weight", "counts")
    require_int32(plan, counts)
    name, shape = plan.kernel(node), node.results[0].shape
    group = [node]
    for other in plan.later(node):
        same = other.op is node.op and (other.operand("x"), other.operand("counts")) == (x, counts)
        if same and id(other) not in plan.done and plan.kernel(other) == name and other.results[0].shape == shape:
            group.append(other)
    jobs: list[Argument] = []
    group = group[:MOST_JOBS]
    for member in group:
        (weight,) = operands_of(member, "weight")
        jobs += [plan.weight_table(weight)[0], plan.result(member.results[0])]
    rows, stride = matrix_of(plan, x)
    plan.command(
        "grouped",
        node,
        plan.address(x),
        plan.type_code(x),
        *map(plan.number, (rows, x.shape[1], stride)),
        plan.address(counts),
        *map(plan.number, (counts.shape[0], shape[1], tiled, len(jobs) // 2)),
        *jobs,
    )
    plan.done.update(map(id, group))


@encodes("native_fused_moe")
def fused_moe(plan: Planner, node: Node) -> None:
    _fused(plan, node, tiled=False)


@encodes("native_fused_moe_int8")
def fused_moe_tiles(plan: Planner, node: Node) -> None:
    _fused(plan, node, tiled=True)


def _fused(plan: Planner, node: Node, *, tiled: bool) -> None:
    x, weights, experts, *networks = operands_of(node, "x", "weights", "experts", "gate", "up", "down")
    require_int32(plan, experts)
    if not plan.place(weights).contiguous:
        raise NotPlannable("fused_moe with weights that are a view")
    kind = networks[0].type
    assert isinstance(kind, WeightType)
    count, inner, width = kind.shape
    plan.command(
        "moe",
        node,
        *map(plan.address, (x, weights, experts)),
        *(plan.weight_table(network)[0] for network in networks),
        plan.result(node.results[0]),
        *map(plan.number, (*experts.shape, count, width, inner, matrix_of(plan, x)[1])),
        plan.type_code(x),
        plan.number(tiled),
    )
