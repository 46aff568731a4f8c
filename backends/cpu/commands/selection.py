"""Commands that choose among the values of a row."""

from __future__ import annotations

from xinheng.core.ir.graph import Node, Value

from ..program import Argument, NotPlannable, Planner
from .encoder import encodes, matrix_of, operands_of


@encodes("native_argmax")
def argmax(plan: Planner, node: Node) -> None:
    (x,) = operands_of(node, "x")
    rows, stride = matrix_of(plan, x)
    sizes = map(plan.number, (rows, x.shape[-1], stride))
    plan.command("argmax", node, plan.address(x), *sizes, plan.result(node.results[0]))


@encodes("native_random_uniform")
def random_uniform(plan: Planner, node: Node) -> None:
    seed, counter = _contiguous(plan, operands_of(node, "seed", "counter"))
    result = node.results[0]
    plan.command("random_uniform", node, seed, counter, plan.number(result.shape[0]), plan.result(result))


@encodes("native_top_k_top_p_sample")
def sample(plan: Planner, node: Node) -> None:
    (logits,) = operands_of(node, "logits")
    rows, stride = matrix_of(plan, logits)
    given = operands_of(node, "uniform", "temperature", "top_k", "top_p", "min_p")
    sizes = map(plan.number, (rows, logits.shape[-1], stride))
    address = plan.address(logits)
    plan.command("sample", node, address, *sizes, *_contiguous(plan, given), plan.result(node.results[0]))


def _contiguous(plan: Planner, values: list[Value]) -> list[Argument]:
    """Addresses; NotPlannable if one is a view with gaps."""
    for value in values:
        if not plan.place(value).contiguous:
            raise NotPlannable(f"a view in place of contiguous {value.type}")
    return [plan.address(value) for value in values]
