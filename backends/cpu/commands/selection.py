"""Commands that choose among the values of a row."""

from __future__ import annotations

from xinheng.core.ir.graph import Node

from ..program import Planner
from .encoder import encodes, matrix_of, operands_of


@encodes("native_argmax")
def argmax(plan: Planner, node: Node) -> None:
    (x,) = operands_of(node, "x")
    rows, stride = matrix_of(plan, x)
    sizes = map(plan.number, (rows, x.shape[-1], stride))
    plan.command("argmax", node, plan.address(x), *sizes, plan.result(node.results[0]))
