"""Remove what does not matter: dead nodes, repeated nodes, and moves that move nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..ir.graph import Builder, Graph, Node, Value
from ..ir.types import StateType
from .rewrite import keep, rebuild


def simplify(graph: Graph) -> Graph:
    """Drop casts and reshapes to the same type, merge equal nodes, and drop nodes and constants nobody reads."""
    return _live(rebuild(graph, _emitter()))


def _emitter() -> Any:
    known: dict[Any, Sequence[Value]] = {}

    def emit(builder: Builder, node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        first = operands[0] if operands else None
        if node.op.name in ("cast", "reshape", "expand") and first is not None and first.type == node.results[0].type:
            return (first,)
        stateful = any(isinstance(r.type, StateType) for r in node.results)
        key = (node.op.name, tuple(map(id, operands)), tuple((k, repr(v)) for k, v in node.attributes.items()))
        if stateful or key not in known:
            made = keep(builder, node, operands)
            if stateful:
                return made
            known[key] = made
        return known[key]

    return emit


def _live(graph: Graph) -> Graph:
    needed = {id(v) for v in (*graph.outputs.values(), *(final for _, final in graph.states))}
    nodes = []
    for node in reversed(graph.nodes):
        if any(id(r) in needed for r in node.results):
            nodes.append(node)
            needed.update(id(v) for v in node.operands if v is not None)
    constants = tuple(c for c in graph.constants if id(c) in needed)
    if len(nodes) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    # Built anew, so that the run-time checks of dropped nodes go with them.
    return rebuild(replace(graph, nodes=tuple(reversed(nodes)), constants=constants), keep)
