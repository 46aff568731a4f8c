"""Commands of views, elementwise functions, gated activations and gathered rows."""

from __future__ import annotations

import ctypes

from xinheng.core.ir.dim import Dim
from xinheng.core.ir.graph import Node, Value

from ..kernels.activation import GELU, SILU
from ..kernels.pointwise import FUNCTIONS, strides_of
from ..program import Argument, Encoder, NotPlannable, Planner
from .encoder import encodes, matrix_of, operands_of, product_of, require_int32
from .views import contiguous


@encodes("numpy_reshape")
def reshape(plan: Planner, node: Node) -> None:
    (x,) = operands_of(node, "x")
    result, place = node.results[0], plan.place(x)
    if place.contiguous:
        plan.alias(result, x)
    elif result.shape[-1:] == x.shape[-1:]:
        plan.alias(result, x, row=place.row)
    else:
        contiguous(plan, node, x, result)


def _gated(plan: Planner, node: Node, function: int) -> None:
    gate, up = operands_of(node, "gate", "up")
    if gate.type != up.type:
        raise NotPlannable("a gated activation that broadcasts")
    rows, gate_stride = matrix_of(plan, gate)
    plan.command(
        "gated",
        node,
        plan.number(function),
        plan.address(gate),
        plan.address(up),
        plan.type_code(gate),
        *map(plan.number, (rows, gate.shape[-1], gate_stride, matrix_of(plan, up)[1])),
        plan.result(node.results[0]),
    )


@encodes("native_silu_and_mul")
def silu_and_mul(plan: Planner, node: Node) -> None:
    _gated(plan, node, SILU)


@encodes("native_gelu_and_mul")
def gelu_and_mul(plan: Planner, node: Node) -> None:
    _gated(plan, node, GELU[node.attributes["approximate"]])


@encodes("native_index_select")
def index_select(plan: Planner, node: Node) -> None:
    x, indices = operands_of(node, "x", "indices")
    place, result = plan.place(x), node.results[0]
    if node.attributes["axis"] != 0 or len(x.shape) != 2:
        raise NotPlannable("index_select of other than rows")
    require_int32(plan, indices)
    size, width = x.dtype.bits // 8, x.shape[1]
    plan.command(
        "gather_rows",
        node,
        plan.address(x),
        plan.address(indices),
        *map(plan.number, (indices.shape[0], x.shape[0], place.row * size, width * size)),
        plan.result(result),
    )


def pointwise(plan: Planner, node: Node, function: str, operands: list[Value], result: Value) -> None:
    """An elementwise function of operands that are broadcast to the result."""
    shape = result.shape
    columns = shape[-1] if shape else 1
    given: list[Argument] = []
    for value in [*operands, operands[0]][:2]:
        given += _broadcast(plan, value, shape)
    plan.command(
        "elementwise",
        node,
        plan.number(FUNCTIONS[function]),
        plan.number(product_of(shape[:-1])),
        plan.number(columns),
        *given,
        plan.type_code(result),
        plan.result(result),
    )


def _broadcast(plan: Planner, value: Value, shape: tuple[Dim, ...]) -> list[Argument]:
    if isinstance(value.data, int | float):
        memory = (ctypes.c_float * 1)(float(value.data))
        return [plan.pointer(memory), plan.number(0), plan.number(0), plan.number(0)]
    strides, place = strides_of(value.shape, shape), plan.place(value)
    if strides is None or not place.contiguous:
        raise NotPlannable(f"broadcast of {value.type}")
    return [plan.address(value), *map(plan.number, strides), plan.type_code(value)]


def _register_pointwise() -> None:
    def encoder(name: str) -> Encoder:
        def encode(plan: Planner, node: Node) -> None:
            operands = [value for value in node.operands if value is not None]
            pointwise(plan, node, name, operands, node.results[0])

        return encode

    for name in FUNCTIONS:
        encodes(f"native_{name}")(encoder(name))


_register_pointwise()
