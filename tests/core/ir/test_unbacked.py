"""Sizes that only a run will tell get a name of their own in each graph, through text, verification and passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from xinheng.core import ops
from xinheng.core.errors import GraphError
from xinheng.core.ir import Builder, Graph, TensorType, evaluate, paged_kv, parse_graph, sym, verify
from xinheng.core.ir.dim import floordiv, mod
from xinheng.core.ir.dtype import float32, int32
from xinheng.core.ir.substitution import substitute
from xinheng.core.ops import OPSET
from xinheng.core.passes import simplify


def two_searches(dead: bool = False) -> Graph:
    """The places of elements that are not zero in two vectors, each reshaped by its own unknown size."""
    b = Builder("search")
    a = b.input("a", TensorType(float32, (sym("n"),)))
    c = b.input("c", TensorType(float32, (sym("n"),)))
    first, second = ops.nonzero(a), ops.nonzero(c)
    flat = ops.reshape(second, shape=(second.shape[1],))
    return b.build(flat) if dead else b.build(first, flat)


def test_results_of_two_nodes_have_sizes_of_their_own() -> None:
    graph = verify(two_searches())
    assert [str(v.shape[-1]) for v in graph.outputs.values()] == ["nonzero", "nonzero_1"]
    made, _ = evaluate(graph, {"a": np.array([0.0, 1.0, 2.0]), "c": np.array([3.0, 0.0, 0.0])})
    assert made["out0"].tolist() == [[1, 2]] and made["out1"].tolist() == [0]


def test_a_name_that_an_input_has_is_left_to_it() -> None:
    b = Builder()
    x = b.input("x", TensorType(float32, (sym("nonzero"),)))
    graph = verify(b.build(ops.nonzero(x)))
    assert str(graph.outputs["out0"].type) == "int64[1, nonzero_1]"


def test_sizes_survive_the_text_form() -> None:
    graph = two_searches()
    assert str(verify(parse_graph(str(graph), OPSET))) == str(graph)


def test_a_pass_renames_sizes_in_attributes_too() -> None:
    graph = verify(simplify(two_searches(dead=True)))
    assert [node.op.name for node in graph.nodes] == ["nonzero", "reshape"]
    assert str(graph.outputs["out0"].type) == "int64[nonzero]"
    made, _ = evaluate(graph, {"a": np.zeros(3), "c": np.array([0.0, 5.0, 5.0])})
    assert made["out0"].tolist() == [1, 2]


def test_two_caches_are_gathered_with_different_sizes() -> None:
    b = Builder("gather")
    kind = paged_kv(1, 2, 2, "float32")
    caches = [b.state(name, kind) for name in ("left", "right")]
    seqs = [b.input(f"seq_lens_{i}", TensorType(int32, (sym("seqs"),))) for i in range(2)]
    table = b.input("table", TensorType(int32, (sym("seqs"), 2)))
    keys = [ops.gather_kv_cache(cache, lens, table)[0] for cache, lens in zip(caches, seqs, strict=True)]
    graph = verify(b.build(*keys))
    assert [str(v.shape[0]) for v in graph.outputs.values()] == ["gathered", "gathered_1"]


def test_sharing_a_size_is_refused() -> None:
    graph = two_searches()
    first, second, reshaped = graph.nodes
    shared = replace(second.results[0], type=first.results[0].type)
    nodes = (first, replace(second, results=(shared,)), reshaped)
    with pytest.raises(GraphError, match=r"nonzero: result .* the op says .*nonzero_of_its_own"):
        verify(replace(graph, nodes=nodes))


def test_a_term_that_divides_every_term_cancels() -> None:
    b, s = sym("b"), sym("s")
    assert floordiv(b * s * 2048, b * s * 64) == 32
    assert floordiv(b * s + b * 3, b) == s + 3
    assert mod(b * s * 4, s) == 0
    assert str(floordiv(b * 7, b * 2)) == "((7 * b) // (2 * b))"


def test_substitution_reaches_into_divisions() -> None:
    n = sym("n")
    assert substitute((n + 1) // 2 + n * sym("m"), {"n": 5}) == 3 + 5 * sym("m")
    assert substitute(n, {"m": 1}) == n
