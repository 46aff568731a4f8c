"""Rebuilding a graph node by node: the one mechanism under every pass."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from ..ir.dim import Dim
from ..ir.graph import Builder, Graph, Node, Value
from ..ir.op import results
from ..ir.substitution import learn_sizes, resized

Emit = Callable[[Builder, Node, Sequence[Value | None]], Sequence[Value]]
"""Puts the replacement of a node into a builder, given its operands there, and returns the values of its results."""


def keep(builder: Builder, node: Node, operands: Sequence[Value | None]) -> tuple[Value, ...]:
    """Emit a node as it is."""
    made: Any = builder.call(node.op, operands, node.attributes)
    return results(made)


def rebuild(graph: Graph, emit: Emit, skip: Container[int] = (), image: dict[int, Value] | None = None) -> Graph:
    """A new graph in which `emit` has replaced each node.

    Roots and output names stay; results are named anew, and so are sizes that only a run will tell. Nodes whose
    identity is in `skip` are left out. `image` is filled with the new value of each old one by its identity; `emit` may
    read it, and has to enter the results of skipped nodes that are still used.
    """
    builder = Builder(graph.name)
    image = {} if image is None else image
    sizes: dict[str, Dim] = {}
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
        if id(node) in skip:
            continue
        operands = [None if v is None else image[id(v)] for v in node.operands]
        made = emit(builder, resized(node, sizes), operands)
        for old, new in zip(node.results, made, strict=True):
            image[id(old)] = new
            learn_sizes(old, new, sizes)
    return builder.build(**{name: image[id(value)] for name, value in graph.outputs.items()})
