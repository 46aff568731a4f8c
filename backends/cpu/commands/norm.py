"""Commands of norms and rotary positions."""

from __future__ import annotations

from xinheng.core.ir.graph import Node, Value

from ..program import NotPlannable, Planner
from .elementwise import pointwise
from .encoder import encodes, matrix_of, operands_of


@encodes("native_rms_norm")
def rms_norm(plan: Planner, node: Node) -> None:
    x, weight = operands_of(node, "x", "weight")
    _norm(plan, node, x, weight, node.results[0])


def _norm(plan: Planner, node: Node, x: Value, weight: Value, result: Value) -> None:
    rows, stride = matrix_of(plan, x)
    plan.command(
        "norm",
        node,
        plan.address(x),
        plan.type_code(x),
        *map(plan.number, (rows, 1, stride, 0, x.shape[-1])),
        plan.address(weight),
        plan.type_code(weight),
        plan.number(float(node.attributes["eps"])),
        plan.result(result),
    )


@encodes("native_add_rms_norm")
def add_rms_norm(plan: Planner, node: Node) -> None:
    x, residual, weight = operands_of(node, "x", "residual", "weight")
    normed, total = node.results
    pointwise(plan, node, "add", [x, residual], total)
    _norm(plan, node, total, weight, normed)


@encodes("native_rotary_embedding")
def rotary(plan: Planner, node: Node) -> None:
    x, cos, sin = operands_of(node, "x", "cos", "sin")
    tokens, heads, width = x.shape
    if not plan.place(cos).contiguous or not plan.place(sin).contiguous:
        raise NotPlannable("rotary_embedding with tables that are views")
    row = plan.place(x).row
    plan.command(
        "rotary",
        node,
        plan.address(x),
        plan.type_code(x),
        *map(plan.number, (tokens, heads, heads * row, row, width)),
        plan.address(cos),
        plan.address(sin),
        plan.number(cos.shape[1]),
        plan.number(node.attributes["interleaved"]),
        plan.result(node.results[0]),
    )
