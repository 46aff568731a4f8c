"""Graphs of one node, for questions about it: can a device run it, and what does it decompose into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..ir.dim import Expr, Symbol, symbols
from ..ir.dtype import bool_
from ..ir.graph import Builder, Graph, Node, Value
from ..ir.op import results
from ..ir.types import StateType, TensorType
from .decompose import decompose


def alone(node: Node) -> Graph:
    """A node as a graph of its own; its inputs are its tensor operands, and one more for each size they do not tell."""
    builder = Builder(node.op.name)
    operands = _operands(builder, node, results_are_inputs=True)
    told = {str(dim) for v in operands.values() if v is not None and v.kind == "input" for dim in v.shape}
    for name, symbol in {s.name: s for s in mentioned(node)}.items():
        if name not in told and not symbol.unbacked:
            builder.input(f"size.{name}", TensorType(bool_, (Expr((((symbol,), 1),)),)))
    made: Any = builder.call(node.op, [operands[id(v)] for v in node.operands], node.attributes)
    return builder.build(**{v.name: v for v in results(made) if isinstance(v.type, TensorType)})


def expansion(node: Node, supports: Callable[[Node], bool]) -> Graph:
    """What a composite node stands for, alone, with the composites in it that `supports` denies expanded too.

    Operands that are results in their graph are parameters here, because they are no inputs that a kernel could have on
    the host.
    """
    builder = Builder(node.op.name)
    operands = _operands(builder, node, results_are_inputs=False)
    made = results(node.op.expand(*(operands[id(v)] for v in node.operands), **node.attributes))
    return decompose(builder.build(*made), supports)


def mentioned(node: Node) -> Iterator[Symbol]:
    """The symbols in the shapes of operands and results and in the attributes of a node, possibly repeated."""
    for value in (*node.operands, *node.results):
        if value is not None and isinstance(value.type, TensorType):
            for dim in value.type.shape:
                yield from symbols(dim)
    for attribute in node.attributes.values():
        for part in attribute if isinstance(attribute, tuple) else (attribute,):
            if isinstance(part, Expr):
                yield from symbols(part)


def _operands(builder: Builder, node: Node, results_are_inputs: bool) -> dict[int, Value | None]:
    """The operands of a node as roots of a graph that is being built, by the identity of the originals."""
    image: dict[int, Value | None] = {id(None): None}
    for value in node.operands:
        if value is None or id(value) in image:
            continue
        if value.data is not None:
            image[id(value)] = builder.constant(value.data, value.dtype, value.name)
        elif isinstance(value.type, StateType):
            image[id(value)] = builder.state(value.name, value.type)
        elif isinstance(value.type, TensorType) and (
            value.kind == "input" or (value.kind == "result" and results_are_inputs)
        ):
            image[id(value)] = builder.input(value.name, value.type)
        else:
            image[id(value)] = builder.parameter(value.name, value.type)
    return image
