"""Verification finds what is wrong in graphs that no builder made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from xinheng.core import ops
from xinheng.core.errors import GraphError
from xinheng.core.ir import Builder, Graph, TensorType, paged_kv, sym, verify
from xinheng.core.ir.dtype import float16, float32, int32


def sample() -> Graph:
    """Two inputs of heights that may differ, a cache that is written and then read, constants of both kinds."""
    b = Builder("sample")
    x, y = (b.input(name, TensorType(float32, (sym(size), 8))) for name, size in (("x", "n"), ("y", "m")))
    total = ops.add(ops.mul(x, 2.0), ops.add(y, b.constant(np.arange(8, dtype=np.float32))))
    soft = ops.softmax(total)
    cache = b.state("cache", paged_kv(2, 4, 4, "float32"))
    heads = ops.reshape(soft, shape=(sym("n"), 2, 4))
    slots, start = b.input("slots", TensorType(int32, (sym("n"),))), b.input("start", TensorType(int32, (2,)))
    lens, table = b.input("lens", TensorType(int32, (1,))), b.input("table", TensorType(int32, (1, 3)))
    written = ops.write_cache(cache, heads, heads, slots)
    return b.build(ops.paged_attention(heads, written, start, lens, table, scale=0.5)[0])


def node_at(graph: Graph, op: str) -> int:
    return next(i for i, node in enumerate(graph.nodes) if node.op.name == op)


def with_node(graph: Graph, op: str, **changes: object) -> Graph:
    """The graph with one node changed."""
    i = node_at(graph, op)
    changed = replace(graph.nodes[i], **changes)  # type: ignore[arg-type]
    return replace(graph, nodes=(*graph.nodes[:i], changed, *graph.nodes[i + 1 :]))


def moved(graph: Graph, op: str, to: int) -> Graph:
    nodes = list(graph.nodes)
    nodes.insert(to, nodes.pop(node_at(graph, op)))
    return replace(graph, nodes=tuple(nodes))


def repeated(graph: Graph, op: str) -> Graph:
    i = node_at(graph, op)
    return replace(graph, nodes=(*graph.nodes[: i + 1], *graph.nodes[i:]))


def retyped(graph: Graph) -> Graph:
    result = replace(graph.nodes[node_at(graph, "softmax")].results[0], type=TensorType(float16, (sym("n"), 8)))
    return with_node(graph, "softmax", results=(result,))


def read_after_write(graph: Graph) -> Graph:
    """Attention over the cache as it was before the write."""
    node = graph.nodes[node_at(graph, "paged_attention")]
    return with_node(graph, "paged_attention", operands=(node.operands[0], graph.states[0][0], *node.operands[2:]))


def written_twice(graph: Graph) -> Graph:
    node = graph.nodes[node_at(graph, "write_cache")]
    again = replace(node, results=(replace(node.results[0], name="again"),))
    return replace(graph, nodes=(*graph.nodes, again))


def foreign_operand(graph: Graph) -> Graph:
    other = sample()
    node = graph.nodes[node_at(graph, "softmax")]
    return with_node(graph, "softmax", operands=(other.nodes[0].results[0], *node.operands[1:]))


def same_name(graph: Graph) -> Graph:
    return replace(graph, inputs=(graph.inputs[0], replace(graph.inputs[1], name="x"), *graph.inputs[2:]))


def other_maximum(graph: Graph) -> Graph:
    changed = replace(graph.inputs[0], type=TensorType(float32, (sym("k", 4), 8)))
    extra = replace(graph.inputs[0], name="extra", type=TensorType(float32, (sym("k", 5),)))
    return replace(graph, inputs=(*graph.inputs, replace(changed, name="more"), extra))


BROKEN: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "use before definition": (lambda g: moved(g, "softmax", 0), "softmax: operand %2 is used before it is defined"),
    "operand of another graph": (foreign_operand, "softmax: operand %0 is used before it is defined"),
    "single assignment": (lambda g: repeated(g, "softmax"), "value %3 is defined twice"),
    "name taken twice": (same_name, "value %x is defined twice"),
    "result type": (retyped, r"softmax: result %3 is float16\[n, 8\], the op says float32\[n, 8\]"),
    "operand kind": (
        lambda g: with_node(g, "softmax", operands=(g.states[0][0],)),
        "softmax: operand 'x' must be a Tensor, not state",
    ),
    "operand missing": (lambda g: with_node(g, "softmax", operands=(None,)), "softmax: operand 'x' is required"),
    "operand count": (lambda g: with_node(g, "softmax", operands=()), "softmax: takes 1 operands, got 0"),
    "attribute unknown": (
        lambda g: with_node(g, "softmax", attributes=MappingProxyType({"axes": 1})),
        "softmax: unknown attribute 'axes', did you mean 'axis'",
    ),
    "attribute default left out": (
        lambda g: with_node(g, "softmax", attributes=MappingProxyType({})),
        r"softmax: attributes are \{\}, complete they are \{'axis': -1\}",
    ),
    "attribute unfit": (
        lambda g: with_node(g, "softmax", attributes=MappingProxyType({"axis": 7})),
        "softmax: axis 7 is out of range",
    ),
    "state read after its write": (read_after_write, "paged_attention: state %cache was already written"),
    "state written twice": (
        written_twice,
        "write_cache: state %cache was already written; a write must be its last use",
    ),
    "state end": (
        lambda g: replace(g, states=((g.states[0][0], g.states[0][0]),)),
        "state %cache ends as %5, not as %cache",
    ),
    "output undefined": (
        lambda g: replace(g, outputs=MappingProxyType({"y": sample().inputs[0]})),
        "output 'y' is %x, which the graph does not define",
    ),
    "checks dropped": (lambda g: replace(g, checks=()), "add: the graph does not check n == m when it runs"),
    "constant data": (
        lambda g: replace(g, constants=(g.constants[0], replace(g.constants[1], data=np.zeros(3)))),
        r"constant %c1 is float32\[8\], its data has shape \[3\]",
    ),
    "constant without data": (
        lambda g: replace(g, constants=(replace(g.constants[0], data=None), g.constants[1])),
        "constant %c0 is",
    ),
    "symbols": (other_maximum, "size 'k' is declared in two ways"),
}


def test_the_sample_is_well_formed() -> None:
    graph = sample()
    assert verify(graph) is graph


@pytest.mark.parametrize("name", BROKEN)
def test_broken_graphs_are_refused(name: str) -> None:
    broken, message = BROKEN[name]
    with pytest.raises(GraphError, match=message):
        verify(broken(sample()))
