"""Replace composites that a device lacks by their decompositions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir.graph import Builder, Graph, Node, Value
from ..ir.op import results
from .rewrite import keep, rebuild


def decompose(graph: Graph, supports: Callable[[Node], bool]) -> Graph:
    """Expand every composite node that `supports` denies, again and again, until only primitives are denied."""
    while any(node.op.composite and not supports(node) for node in graph.nodes):
        graph = rebuild(graph, _emitter(supports))
    return graph


def _emitter(supports: Callable[[Node], bool]) -> Callable[[Builder, Node, Sequence[Value | None]], Sequence[Value]]:
    def emit(builder: Builder, node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        if node.op.composite and not supports(node):
            return results(node.op.expand(*operands, **node.attributes))
        return keep(builder, node, operands)

    return emit
