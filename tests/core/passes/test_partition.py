"""Cutting a graph into parts: what crosses has a name, states stay whole, and the parts together mean the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xinheng.core import OPSET, ops
from xinheng.core.errors import GraphError
from xinheng.core.ir import Builder, Graph, Node, TensorType, evaluate, paged_kv, parse_graph, print_graph, sym, verify
from xinheng.core.ir.dtype import float32, float64, int32
from xinheng.core.ops import KVPages
from xinheng.core.passes import Partition, decompose, fuse, partition, rebuild, simplify, state_groups

from ..random_graphs import feeds, graphs, weights

N = sym("n")
X = TensorType(float32, (N, 4))


def by_op(*here: str) -> Callable[[Node], bool]:
    return lambda node: node.op.name in here


def evaluated(parts: list[Partition[Any]], graph: Graph, inputs: Any, parameters: Any, states: Any) -> dict[str, Any]:
    """The outputs of a graph by its parts, each of which sees its own inputs and nothing else."""
    values, held = dict(inputs), dict(states)
    for part in parts:
        given = {v.name: values[v.name] for v in part.graph.inputs}
        own = {v.name: parameters[v.name] for v in part.graph.parameters}
        before = {state.name: held[state.name] for state, _ in part.graph.states}
        made, after = evaluate(part.graph, given, own, before)
        values |= made
        held |= after
    return {name: values[v.name] for name, v in graph.outputs.items()}


@st.composite
def placed(draw: Any) -> tuple[Graph, dict[int, int]]:
    """A random graph and one of three places for each of its nodes."""
    graph = draw(graphs(float64))
    return graph, {id(node): draw(st.integers(0, 2)) for node in graph.nodes}


@settings(max_examples=120, deadline=None)
@given(placed())
def test_parts_mean_the_whole(case: tuple[Graph, dict[int, int]]) -> None:
    graph, places = case
    parts = partition(graph, lambda node: places[id(node)])
    for part in parts:
        verify(part.graph)
        assert print_graph(parse_graph(print_graph(part.graph), OPSET)) == print_graph(part.graph)
        assert {places[id(node)] for node in part.nodes} == {part.place}
        assert [n.op for n in part.nodes] == [n.op for n in part.graph.nodes]
    assert sorted(id(node) for part in parts for node in part.nodes) == sorted(map(id, graph.nodes))
    assert all(before.place != after.place for before, after in pairwise(parts))
    inputs, parameters = feeds(graph, 3), weights(graph)
    got = evaluated(parts, graph, inputs, parameters, {})
    for name, want in evaluate(graph, inputs, parameters)[0].items():
        np.testing.assert_array_equal(got[name], want)


@settings(max_examples=60, deadline=None)
@given(graphs(float64), st.sets(st.sampled_from(["rms_norm", "silu", "silu_and_mul", "gelu_and_mul", "softmax"])))
def test_all_passes_in_a_row_keep_the_meaning(graph: Graph, here: set[str]) -> None:
    supports = by_op(*here)
    lowered = verify(simplify(fuse(decompose(graph, supports), supports)))
    assert print_graph(parse_graph(print_graph(lowered), OPSET)) == print_graph(lowered)
    assert str(rebuild(lowered, lambda b, node, operands: b.call_named(node.op, operands, node.attributes, None)))
    inputs, parameters = feeds(graph, 3), weights(graph)
    got = evaluated(partition(lowered, supports), lowered, inputs, parameters, {})
    if any(node.op.name in ("lt", "topk", "argmax", "cast", "maximum", "minimum") for node in graph.nodes):
        return  # orderings may fall the other way where values differ in their last bit
    for name, want in evaluate(graph, inputs, parameters)[0].items():
        scale = max(1.0, float(np.nanmax(np.abs(want), initial=0)))
        np.testing.assert_allclose(got[name], want, rtol=1e-9, atol=1e-11 * scale)


def names(parts: list[Partition[Any]]) -> list[tuple[Hashable, list[str], list[str], list[str]]]:
    """Of each part its place, ops, inputs and outputs."""
    return [
        (p.place, [n.op.name for n in p.nodes], [v.name for v in p.graph.inputs], list(p.graph.outputs)) for p in parts
    ]


def test_crossing_values_have_the_names_they_had() -> None:
    b = Builder()
    x = b.input("x", X)
    low, high = ops.split(ops.exp(x), sizes=(2, 2), axis=1)
    graph = b.build(y=ops.add(ops.neg(low), x.builder.constant(2.0, float32)), z=high)
    assert names(partition(graph, by_op("exp", "neg"))) == [
        (True, ["exp"], ["x"], ["0"]),
        (False, ["split"], ["0"], ["1", "2"]),
        (True, ["neg"], ["1"], ["3"]),
        (False, ["add"], ["3"], ["4"]),
    ]


def test_runs_are_as_long_as_they_can_be() -> None:
    b = Builder()
    x = b.input("x", X)
    made = []
    for _ in range(4):
        made.append(ops.exp(ops.neg(x)))
    graph = b.build(*made)
    assert [(p.place, len(p.nodes)) for p in partition(graph, by_op("neg"))] == [(True, 4), (False, 4)]
    assert [len(p.nodes) for p in partition(graph, lambda node: None)] == [8]


def test_roots_that_are_outputs_come_through() -> None:
    b = Builder()
    x = b.input("x", X)
    c = b.constant(np.arange(3.0), float32)
    graph = b.build(x=x, c=c, y=ops.exp(ops.neg(x)))
    parts = partition(graph, by_op("neg"))
    assert [list(p.graph.outputs) for p in parts] == [["0", "x", c.name], ["1"]]
    got = evaluated(parts, graph, {"x": np.ones((2, 4))}, {}, {})
    assert got["c"].tolist() == [0, 1, 2]


def test_a_graph_without_nodes_has_no_parts() -> None:
    assert partition(Builder().build(), lambda node: 0) == []


def test_a_part_reads_its_sizes_off_its_own_inputs() -> None:
    b = Builder()
    x = b.input("x", X)
    start = b.call(ops.full, (), {"shape": (N, 4), "value": 1.0, "dtype": float32})
    graph = b.build(ops.add(ops.exp(start), x), ops.exp(start))
    (_, first, _) = partition(graph, by_op("exp"))[0:3]
    assert [v.name for v in partition(graph, by_op("exp"))[0].graph.inputs] == ["x"]
    assert [v.name for v in first.graph.inputs] == ["0"]


def attending(reads_before: bool = False) -> Graph:
    b = Builder()
    cache = b.state("cache", paged_kv(1, 2, 2, "float64"))
    k = b.input("k", TensorType(float64, (N, 1, 2)))
    slots, start = b.input("slots", TensorType(int32, (N,))), b.input("start", TensorType(int32, (2,)))
    lens, table = b.input("lens", TensorType(int32, (1,))), b.input("table", TensorType(int32, (1, 2)))

    def attention(state: Any, q: Any) -> Any:
        return ops.paged_attention(q, state, start, lens, table, scale=1.0)[0]

    made = [attention(cache, k)] if reads_before else []
    for _ in range(2):
        cache = ops.write_cache(cache, ops.exp(k), ops.neg(k), slots)
        made.append(attention(cache, ops.tanh(k)))
    return b.build(*made, keys=ops.gather_kv_cache(cache, lens, table)[0])


@pytest.mark.parametrize("reads_before", [True, False])
def test_a_state_goes_through_all_parts_of_its_place(reads_before: bool) -> None:
    graph = attending(reads_before)
    parts = partition(graph, by_op("write_cache", "paged_attention", "gather_kv_cache"))
    for part in parts:
        verify(part.graph)
        assert [state.name for state, _ in part.graph.states] == (["cache"] if part.place else [])
    inputs = {
        "k": np.random.default_rng(0).normal(size=(3, 1, 2)),
        "slots": np.array([2, 3, 0]),
        "start": np.array([0, 3]),
        "lens": np.array([3]),
        "table": np.array([[1, 0]]),
    }
    empty = {"cache": KVPages(np.zeros((2, 2, 1, 2)), np.zeros((2, 2, 1, 2)))}
    want, _ = evaluate(graph, inputs, {}, empty)
    for place in (by_op("write_cache", "paged_attention", "gather_kv_cache"), lambda node: node.op.name != "exp"):
        got = evaluated(partition(graph, place), graph, inputs, {}, empty)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])


def test_reads_of_a_state_come_before_the_write_that_changes_it() -> None:
    b = Builder()
    cache = b.state("cache", paged_kv(1, 2, 2, "float64"))
    k, slots = b.input("k", TensorType(float64, (N, 1, 2))), b.input("slots", TensorType(int32, (N,)))
    lens, table = b.input("lens", TensorType(int32, (1,))), b.input("table", TensorType(int32, (1, 2)))
    before = ops.gather_kv_cache(cache, ops.neg(ops.neg(lens)), table)[0]
    ops.write_cache(cache, k, k, slots)
    graph = b.build(before)
    parts = partition(graph, by_op("write_cache", "gather_kv_cache"))
    assert [[n.op.name for n in p.nodes] for p in parts] == [["neg", "neg"], ["gather_kv_cache", "write_cache"]]


def test_sizes_that_only_a_run_tells_cross_with_the_value_that_tells_them() -> None:
    graph = attending()
    gathered = graph.outputs["keys"].shape[0]
    b = Builder()
    cache = b.state("cache", paged_kv(1, 2, 2, "float64"))
    lens, table = b.input("lens", TensorType(int32, (1,))), b.input("table", TensorType(int32, (1, 2)))
    keys = ops.gather_kv_cache(cache, lens, table)[0]
    assert keys.shape[0] == gathered
    sized = b.call(ops.full, (), {"shape": (keys.shape[0],), "value": 2.0, "dtype": float64})
    again = b.build(ops.neg(sized))
    parts = partition(again, by_op("gather_kv_cache"))
    assert [v.name for v in parts[1].graph.inputs] == [keys.name]
    verify(parts[1].graph)
    states = {"cache": KVPages(np.zeros((2, 2, 1, 2)), np.zeros((2, 2, 1, 2)))}
    inputs = {"lens": np.array([3]), "table": np.array([[1, 0]])}
    assert evaluated(parts, again, inputs, {}, states)["out0"].tolist() == [-2, -2, -2]


def test_a_state_in_two_places_is_refused() -> None:
    with pytest.raises(
        GraphError, match=r"state cache would be in 2 places, because write_cache and paged_attention are; all ops of a"
    ):
        partition(attending(), by_op("write_cache"))


def test_states_that_share_a_node_are_one_group() -> None:
    graph = attending()
    ((found, nodes),) = state_groups(graph)
    assert found == ("cache",)
    assert [n.op.name for n in nodes] == [
        "write_cache",
        "paged_attention",
        "write_cache",
        "paged_attention",
        "gather_kv_cache",
    ]
    b = Builder()
    b.state("unused", paged_kv(1, 2, 2, "float64"))
    assert state_groups(b.build()) == [(("unused",), [])]


def test_checks_go_with_the_nodes_that_need_them() -> None:
    b = Builder()
    x, y = b.input("x", X), b.input("y", TensorType(float32, (sym("m"), 4)))
    graph = b.build(ops.neg(ops.add(ops.exp(x), y)))
    parts = partition(graph, by_op("exp", "neg"))
    assert [len(p.graph.checks) for p in parts] == [0, 1, 0]
    for part in parts:
        verify(part.graph)
