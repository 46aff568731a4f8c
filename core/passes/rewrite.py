"""Rebuilding a graph node by node: the one mechanism under every pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..ir.graph import Builder, Graph, Node, Value
from ..ir.op import results

Emit = Callable[[Builder, Node, Sequence[Value | None]], Sequence[Value]]
"""Puts the replacement of a node into a builder, given its operands there, and returns the values of its results."""


def keep(builder: Builder, node: Node, operands: Sequence[Value | None]) -> tuple[Value, ...]:
    """Emit a node as it is."""
    made: Any = builder.call(node.op, operands, node.attributes)
    return results(made)


def rebuild(graph: Graph, emit: Emit) -> Graph:
    """A new graph in which `emit` has replaced each node. Roots and output names stay; results are named anew."""
    builder = Builder(graph.name)
    image: dict[int, Value] = {}
    for value in graph.inputs:
        image[id(value)] = builder.input(value.name, value.tensor)
    for value in graph.parameters:
        image[id(value)] = builder.parameter(value.name, value.type)  # type: ignore[arg-type]
    for state, _ in graph.states:
        image[id(state)] = builder.state(state.name, state.type)  # type: ignore[arg-type]
    for value in graph.constants:
        assert value.data is not None
        image[id(value)] = builder.constant(value.data, value.dtype, value.name)
    for node in graph.nodes:
        operands = [None if v is None else image[id(v)] for v in node.operands]
        made = emit(builder, node, operands)
        image.update((id(old), new) for old, new in zip(node.results, made, strict=True))
    return builder.build(**{name: image[id(value)] for name, value in graph.outputs.items()})
