"""Commands of products with weights, and of rows looked up in them."""

from __future__ import annotations

from xinheng.core.ir.graph import Node, Value
from xinheng.core.ir.types import WeightType

from ..program import Argument, NotPlannable, Planner
from .encoder import encodes, matrix_of, operands_of, product_of, require_int32


@encodes("native_linear")
def linear(plan: Planner, node: Node) -> None:
    x, weight = operands_of(node, "x", "weight")
    bias = node.operand("bias")
    tokens, stride = matrix_of(plan, x)
    plan.command(
        "linear",
        node,
        plan.address(x),
        plan.type_code(x),
        *map(plan.number, (tokens, x.shape[-1], stride)),
        *plan.weight_table(weight),
        plan.address(bias),
        plan.type_code(bias),
        plan.result(node.results[0]),
    )


TILE_PRODUCTS = {
    "native_linear_int8": ("tile_product", ()),
    "native_linear_tiles": ("float_product", (0,)),
    "native_linear_bf16": ("float_product", (1,)),
}
"""By the name of a kernel that multiplies by tiles, its command, and the numbers that follow the count of weights."""


MOST_JOBS = 9
"""`MOST_TILE_JOBS` in csrc/program.cpp."""
TILES_BYTES = 32
"""Bytes of `Tiles` in csrc/tiles.h."""


def tile_linear(plan: Planner, node: Node) -> None:
    """With it all later products of the same x, so that they share its codes and one parallel section."""
    x, _ = operands_of(node, "x", "weight")
    kernel = plan.kernel(node)
    group = [node]
    if _jobs(group) > MOST_JOBS:
        raise NotPlannable(f"a weight in {_jobs(group)} runs of rows; a command takes {MOST_JOBS}")
    for other in plan.later(node):
        same = other.op is node.op and other.operand("x") is x and plan.kernel(other) == kernel
        free = same and id(other) not in plan.done and _is_given(other.operand("bias"))
        if free and _jobs([*group, other]) <= MOST_JOBS:
            group.append(other)
    arguments: list[Argument] = []
    for member in group:
        arguments += _tile_jobs(plan, member)
    code, numbers = TILE_PRODUCTS[kernel]
    tokens, stride = matrix_of(plan, x)
    sizes = map(plan.number, (tokens, x.shape[-1], stride, len(arguments) // 6, *numbers))
    plan.command(code, node, plan.address(x), plan.type_code(x), *sizes, *arguments)
    plan.done.update(map(id, group))  # not before: where a member has no command, all run from Python


for _name in TILE_PRODUCTS:
    encodes(_name)(tile_linear)


def _jobs(nodes: list[Node]) -> int:
    types = [weight.type for n in nodes if (weight := n.operand("weight")) is not None]
    return sum(len(kind.parts) for kind in types if isinstance(kind, WeightType))


def _is_given(bias: Value | None) -> bool:
    """Whether a bias is there before the graph runs, so that its product may be computed earlier than it stands."""
    return bias is None or bias.kind in ("parameter", "constant")


def _tile_jobs(plan: Planner, node: Node) -> list[Argument]:
    weight, bias, result = node.operand("weight"), node.operand("bias"), node.results[0]
    assert weight is not None
    if bias is not None and not plan.place(bias).contiguous:
        raise NotPlannable("a bias that is a view")
    made, first = [], 0
    y = plan.result(result)
    (table, _), width = plan.weight_table(weight), result.shape[-1]
    for i, (_, rows) in enumerate(weight.type.parts):  # type: ignore[union-attr]
        at = plan.address(bias, 0 if bias is None else first * bias.dtype.bits // 8)
        out = Argument(y.kind, y.index, y.value + first * result.dtype.bits // 8)
        run = Argument(table.kind, table.index, i * TILES_BYTES)
        made += [run, at, plan.type_code(bias), out, plan.number(width), plan.type_code(result)]
        first += rows
    return made


def _embedding(plan: Planner, node: Node, code: str) -> None:
    indices, weight = operands_of(node, "indices", "weight")
    result = node.results[0]
    require_int32(plan, indices)
    table, count = plan.weight_table(weight)
    rest = [table, count]
    if code == "embedding":
        rest.append(plan.number(result.shape[-1]))
    many = product_of(indices.shape)
    plan.command(
        code,
        node,
        plan.address(indices),
        plan.number(0),
        plan.number(many),
        *rest,
        plan.type_code(result),
        plan.result(result),
    )


@encodes("native_embedding")
def embedding(plan: Planner, node: Node) -> None:
    _embedding(plan, node, "embedding")


@encodes("native_embedding_tiles")
def tile_embedding(plan: Planner, node: Node) -> None:
    _embedding(plan, node, "tile_rows")
