"""How nodes become commands of a native program: one encoder per native kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from xinheng.core.ir.dim import Dim
from xinheng.core.ir.graph import Node, Value
from xinheng.core.ir.types import StateType

from .kernels.pointwise import FUNCTIONS, strides_of
from .program import Argument, Encoder, NotPlannable, Planner, code_of

ENCODERS: dict[str, Encoder] = {}
"""By the name of a kernel, what it is in a program."""


def encodes(kernel: str) -> Callable[[Encoder], Encoder]:
    """Register an encoder for a kernel."""

    def register(encoder: Encoder) -> Encoder:
        ENCODERS[kernel] = encoder
        return encoder

    return register


def rows_of(plan: Planner, value: Value) -> tuple[Dim, Dim, Dim, Dim]:
    """The rows of a tensor along its last axis: outer, inner, their strides in values."""
    shape, place = value.shape, plan.place(value)
    if len(shape) == 2 or len(shape) < 2:
        return (shape[0] if len(shape) == 2 else 1), 1, place.row, 0
    if not place.contiguous:
        raise NotPlannable(f"rows of a view {value.type}")
    return _product(shape[:-1]), 1, shape[-1], 0


def matrix_of(plan: Planner, value: Value) -> tuple[Dim, Dim]:
    """The number of rows of a tensor along its last axis, and their distance in values."""
    outer, _, stride, _ = rows_of(plan, value)
    return outer, stride


def _product(dims: tuple[Dim, ...]) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def _operands(node: Node, *names: str) -> list[Value]:
    found = [node.operand(name) for name in names]
    if any(value is None for value in found):
        raise NotPlannable(f"{node.op.name} without {names[found.index(None)]}")
    return [value for value in found if value is not None]


@encodes("torch_reshape")
def reshape(plan: Planner, node: Node) -> None:
    (x,) = _operands(node, "x")
    place = plan.place(x)
    if not place.contiguous:
        raise NotPlannable("reshape of a view")
    plan.alias(node.results[0], x)


@encodes("native_rms_norm")
def rms_norm(plan: Planner, node: Node) -> None:
    x, weight = _operands(node, "x", "weight")
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
        plan.number(node.attributes["eps"]),
        plan.result(result),
    )


@encodes("native_add_rms_norm")
def add_rms_norm(plan: Planner, node: Node) -> None:
    x, residual, weight = _operands(node, "x", "residual", "weight")
    normed, total = node.results
    pointwise(plan, node, "add", [x, residual], total)
    _norm(plan, node, total, weight, normed)


@encodes("native_rotary_embedding")
def rotary(plan: Planner, node: Node) -> None:
    x, cos, sin = _operands(node, "x", "cos", "sin")
    tokens, heads, width = x.shape
    if not plan.place(x).contiguous or not plan.place(cos).contiguous or not plan.place(sin).contiguous:
        raise NotPlannable("rotary_embedding of a view")
    plan.command(
        "rotary",
        node,
        plan.address(x),
        plan.type_code(x),
        *map(plan.number, (tokens, heads, heads * width, width, width)),
        plan.address(cos),
        plan.address(sin),
        plan.number(cos.shape[1]),
        plan.number(node.attributes["interleaved"]),
        plan.result(node.results[0]),
    )


def _gated(plan: Planner, node: Node, function: int) -> None:
    gate, up = _operands(node, "gate", "up")
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
    _gated(plan, node, 0)


@encodes("native_gelu_and_mul")
def gelu_and_mul(plan: Planner, node: Node) -> None:
    _gated(plan, node, 1 if node.attributes["approximate"] == "tanh" else 2)


@encodes("native_write_cache")
def write_cache(plan: Planner, node: Node) -> None:
    cache, k, v, slots = _operands(node, "cache", "k", "v", "slots")
    state = _state(cache)
    if code_of(slots.dtype) != 8:
        raise NotPlannable("slots that are not int32")
    for part, new in enumerate((k, v)):
        if not plan.place(new).contiguous:
            raise NotPlannable("write_cache of a view")
        tokens, heads, width = new.shape
        plan.command(
            "write_cache",
            node,
            plan.address(new),
            plan.type_code(new),
            *map(plan.number, (tokens, heads, heads * width, width, width)),
            plan.address(slots),
            plan.state_part(cache, part),
            plan.number(code_of(state)),
            plan.state_size(cache, "slots"),
        )
    plan.share_state(cache, node.results[0])


@encodes("native_paged_attention")
def paged_attention(plan: Planner, node: Node) -> None:
    q, cache, start, lengths, table = _operands(node, "q", "cache", "query_start", "seq_lens", "block_table")
    if node.operand("bias") is not None or not plan.place(q).contiguous:
        raise NotPlannable("paged_attention with a bias, or of a view")
    if {code_of(x.dtype) for x in (start, lengths, table)} != {8}:
        raise NotPlannable("lengths that are not int32")
    sinks, kind = node.operand("sinks"), cache.type
    assert isinstance(kind, StateType)
    tokens, heads, width = q.shape
    out, lse = node.results
    spec = (kind["heads"], kind["k_dim"], kind["v_dim"])
    attributes = node.attributes
    plan.command(
        "attention",
        node,
        plan.address(q),
        plan.state_part(cache, 0),
        plan.state_part(cache, 1),
        *(plan.address(x) for x in (start, lengths, table, sinks)),
        plan.result(out),
        plan.result(lse),
        *map(plan.number, (tokens, heads, *spec, heads * width, width)),
        plan.state_size(cache, "blocks"),
        plan.state_size(cache, "block_size"),
        *map(plan.number, (lengths.shape[0], table.shape[1], table.shape[1])),
        plan.number(float(attributes["scale"])),
        plan.number(float(attributes["softcap"] or 0.0)),
        plan.number(attributes["window"]),
        plan.type_code(q),
        plan.number(code_of(_state(cache))),
        plan.type_code(sinks),
        plan.number(attributes["causal"]),
    )


def _state(cache: Value) -> Any:
    from xinheng.core.ir.dtype import DTYPES

    assert isinstance(cache.type, StateType)
    kind = DTYPES.get(cache.type["scheme"])
    if kind is None or cache.type.kind != "paged_kv":
        raise NotPlannable(f"commands read no {cache.type}")
    return kind


@encodes("native_linear")
def linear(plan: Planner, node: Node) -> None:
    x, weight = _operands(node, "x", "weight")
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


@encodes("native_linear_int8")
def tile_linear(plan: Planner, node: Node) -> None:
    """With it all later products of the same x, so that they share its codes and one parallel section."""
    x, _ = _operands(node, "x", "weight")
    group = [node]
    for other in plan.later(node):
        same = other.op is node.op and other.operand("x") is x and plan.kernel(other) == "native_linear_int8"
        if same and id(other) not in plan.done and _jobs([*group, other]) <= 9:
            group.append(other)
    arguments: list[Argument] = []
    for member in group:
        arguments += _tile_jobs(plan, member)
        plan.done.add(id(member))
    tokens, stride = matrix_of(plan, x)
    sizes = map(plan.number, (tokens, x.shape[-1], stride, len(arguments) // 6))
    plan.command("tile_product", node, plan.address(x), plan.type_code(x), *sizes, *arguments)


def _jobs(nodes: list[Node]) -> int:
    return sum(len(weight.type.parts) for n in nodes if (weight := n.operand("weight")) is not None)  # type: ignore[union-attr]


TILES_BYTES = 32


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
    indices, weight = _operands(node, "indices", "weight")
    result = node.results[0]
    if code_of(indices.dtype) != 8 or not plan.place(indices).contiguous:
        raise NotPlannable("indices that are not int32")
    table, count = plan.weight_table(weight)
    rest = [table, count]
    if code == "embedding":
        rest.append(plan.number(result.shape[-1]))
    many = _product(indices.shape)
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


@encodes("native_index_select")
def index_select(plan: Planner, node: Node) -> None:
    x, indices = _operands(node, "x", "indices")
    place, result = plan.place(x), node.results[0]
    if node.attributes["axis"] != 0 or len(x.shape) != 2 or code_of(indices.dtype) != 8:
        raise NotPlannable("index_select of other than rows")
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
        plan.number(_product(shape[:-1])),
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
