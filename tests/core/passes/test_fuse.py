"""Fusing finds composites in programs of simpler ops, only where the device has them, and never changes the meaning."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from xinheng.core import ops
from xinheng.core.ir import Builder, Graph, TensorType, evaluate, sym, verify
from xinheng.core.ir.dtype import float32, float64
from xinheng.core.passes import decompose, fuse

from ..random_graphs import feeds, graphs, weights

X = TensorType(float32, (sym("n"), 4))


def counts(graph: Graph) -> dict[str, int]:
    return dict(Counter(node.op.name for node in graph.nodes))


def everything(node: Any) -> bool:
    return True


@settings(max_examples=80, deadline=None)
@given(graphs(float64))
def test_fuse_keeps_the_meaning(graph: Graph) -> None:
    spread = decompose(graph, lambda node: False)
    fused = verify(fuse(spread, everything))
    assert len(fused.nodes) <= len(spread.nodes)
    inputs, parameters = feeds(graph, 3), weights(graph)
    if any(node.op.name in ("lt", "topk", "argmax", "cast", "maximum", "minimum") for node in graph.nodes):
        return  # orderings may fall the other way where values differ in their last bit
    got = evaluate(fused, inputs, parameters)[0]
    for name, want in evaluate(spread, inputs, parameters)[0].items():
        scale = max(1.0, float(np.nanmax(np.abs(want), initial=0)))
        np.testing.assert_allclose(got[name], want, rtol=1e-9, atol=1e-11 * scale)


def test_what_was_decomposed_is_found_again() -> None:
    b = Builder()
    x, up = b.input("x", X), b.input("up", X)
    weight = b.parameter("weight", TensorType(float32, (4,)))
    graph = b.build(ops.silu_and_mul(x, up), ops.rms_norm(x, weight, eps=1e-6))
    spread = decompose(graph, lambda node: False)
    assert counts(fuse(spread, everything)) == {"silu_and_mul": 1, "rms_norm": 1}
    only = counts(fuse(spread, lambda node: node.op.name == "silu"))
    assert (only["silu"], "sigmoid" in only, "silu_and_mul" in only) == (1, False, False)
    assert str(fuse(spread, lambda node: False)) == str(spread)


@pytest.mark.parametrize("same", [True, False])
def test_a_variable_that_is_a_result_inside_the_match(same: bool) -> None:
    b = Builder()
    x = b.input("x", X)
    gate = ops.silu(x)
    graph = b.build(ops.mul(gate, gate if same else x))
    fused = verify(fuse(graph, everything))
    assert counts(fused) == ({"silu": 1, "mul": 1} if same else {"silu_and_mul": 1})
    inputs = {"x": np.random.default_rng(0).normal(size=(2, 4))}
    np.testing.assert_allclose(evaluate(fused, inputs)[0]["out0"], evaluate(graph, inputs)[0]["out0"], rtol=1e-12)


def test_the_sum_of_a_fused_norm_serves_later_readers() -> None:
    b = Builder()
    x, y = b.input("x", X), b.input("y", X)
    weight = b.parameter("weight", TensorType(float32, (4,)))
    total = ops.add(x, y)
    normed = ops.rms_norm(total, weight, eps=1e-6)
    assert counts(fuse(b.build(normed, ops.neg(total)), everything)) == {"add_rms_norm": 1, "neg": 1}
