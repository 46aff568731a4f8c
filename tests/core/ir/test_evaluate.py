"""The float64 oracle binds sizes, checks what could not be proven, and runs references."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from xinheng.core import ops
from xinheng.core.errors import GraphError
from xinheng.core.ir import Builder, Graph, Op, TensorType, Tolerance, WeightType, evaluate, paged_kv, sym, verify
from xinheng.core.ir.dtype import bfloat16, float32, int32
from xinheng.core.ir.evaluate import bind_sizes, check_sizes, widen
from xinheng.core.ir.op import Tensor
from xinheng.core.ops import KVPages

N, M = sym("n", 8), sym("m")


def kept(x: Tensor) -> Tensor:
    """The positive elements of a vector, however many there are."""
    return x[x > 0]


KEPT: Op[..., Any] = Op(kept, Tolerance.SELECTION, 1)
KEPT.infer(lambda x: TensorType(x.dtype, (sym("kept", 3, unbacked=True),)))


def sized() -> Graph:
    b = Builder("sized")
    x = b.input("x", TensorType(float32, (N, 4)))
    y = b.input("y", TensorType(float32, (M, 4)))
    b.input("starts", TensorType(int32, (N + 1,)))
    return b.build(ops.add(x, y))


def arrays(n: int = 2, m: int = 2, starts: int = 3, width: int = 4) -> dict[str, Any]:
    return {"x": np.ones((n, width)), "y": np.ones((m, width)), "starts": np.zeros(starts, np.int32)}


def test_sizes_are_read_off_the_inputs() -> None:
    assert bind_sizes(sized(), arrays(2, 5)) == {"n": 2, "m": 5}
    assert bind_sizes(sized(), arrays(), {"k": 7}) == {"k": 7, "n": 2, "m": 2}
    shapes = {"x": "24", "y": "34", "starts": "3"}
    assert bind_sizes(sized(), shapes, shape=lambda text: tuple(map(int, text))) == {"n": 2, "m": 3}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": np.ones((2, 4))}, "graph 'sized': input 'y' is missing"),
        (arrays() | {"x": np.ones(4)}, r"input 'x' has shape \[4\], the graph wants float32\[n, 4\]"),
        (arrays(9, 9, 10), "input 'x': n is 9, its maximum is 8"),
        (arrays(starts=4), r"input 'starts': size n \+ 1 should be 3, but is 4"),
        (arrays(width=5), "input 'x': size 4 should be 4, but is 5"),
        (arrays(2, 1), r"do not broadcast: n is 2, m is 1"),
    ],
)
def test_sizes_that_do_not_fit(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        evaluate(sized(), inputs)


def test_known_sizes_must_agree() -> None:
    with pytest.raises(GraphError, match="input 'x': n is 2 here and 3 elsewhere"):
        bind_sizes(sized(), arrays(), {"n": 3})


def test_two_inputs_disagree() -> None:
    b = Builder()
    x, y = b.input("x", TensorType(float32, (N,))), b.input("y", TensorType(float32, (N,)))
    with pytest.raises(GraphError, match="input 'y': n is 3 here and 2 elsewhere"):
        evaluate(b.build(ops.add(x, y)), {"x": np.ones(2), "y": np.ones(3)})


def test_a_size_that_no_input_tells() -> None:
    b = Builder()
    x = b.input("x", TensorType(float32, (N + M,)))
    with pytest.raises(GraphError, match=r"needs a value for '[nm]'; given: none"):
        evaluate(b.build(x), {"x": np.ones(2)})
    assert bind_sizes(b.build(x), {"x": np.ones(2)}, {"n": 1, "m": 1}) == {"n": 1, "m": 1}


def test_a_size_that_one_input_tells_by_arithmetic() -> None:
    b = Builder()
    x = b.input("x", TensorType(float32, (N * 2 + 1,)))
    assert bind_sizes(b.build(x), {"x": np.ones(7)}) == {"n": 3}
    with pytest.raises(GraphError, match="needs a value for 'n'"):
        bind_sizes(b.build(x), {"x": np.ones(6)})


def test_values_that_are_missing() -> None:
    b = Builder("g")
    w, cache = b.parameter("w", WeightType((2, 2), "float32")), b.state("cache", paged_kv(1, 2, 2, "float32"))
    x = b.input("x", TensorType(float32, (1, 2)))
    graph = b.build(ops.linear(x, w), cache)
    with pytest.raises(GraphError, match="graph 'g': parameter 'w' is missing"):
        evaluate(graph, {"x": np.ones((1, 2))})
    with pytest.raises(GraphError, match="graph 'g': state 'cache' is missing"):
        evaluate(graph, {"x": np.ones((1, 2))}, {"w": np.ones((2, 2))})


def test_everything_is_float64_and_nothing_is_rounded() -> None:
    b = Builder()
    x = b.input("x", TensorType(bfloat16, (2,)))
    graph = b.build(ops.mul(ops.exp(x), 0.1))
    given = np.array([1.0, 2.0]).astype(ml_dtypes.bfloat16)
    out = evaluate(graph, {"x": given})[0]["out0"]
    assert out.dtype == np.float64
    np.testing.assert_array_equal(out, np.exp([1.0, 2.0]) * 0.1)


def test_special_values_make_no_warnings() -> None:
    b = Builder()
    x = b.input("x", TensorType(float32, (2,)))
    np.testing.assert_array_equal(
        evaluate(b.build(ops.log(x)), {"x": np.array([0.0, -1.0])})[0]["out0"], [-np.inf, np.nan]
    )


def test_symbolic_attributes_are_resolved() -> None:
    b = Builder()
    x = b.input("x", TensorType(float32, (N, 4)))
    graph = verify(b.build(ops.reshape(x, shape=(2, N * 2)), ops.slice(x, axis=0, start=N // 2, stop=N)))
    out = evaluate(graph, {"x": np.ones((6, 4))})[0]
    assert out["out0"].shape == (2, 12)
    assert out["out1"].shape == (3, 4)


def test_states_are_threaded_and_widened() -> None:
    b = Builder()
    cache = b.state("cache", paged_kv(1, 2, 2, "bfloat16"))
    k, slots = b.input("k", TensorType(float32, (N, 1, 2))), b.input("slots", TensorType(int32, (N,)))
    ops.write_cache(ops.write_cache(cache, k, k, slots), ops.mul(k, 2.0), k, slots)
    pages = KVPages(*(np.zeros((2, 2, 1, 2), ml_dtypes.bfloat16) for _ in range(2)))
    _, states = evaluate(
        b.build(), {"k": np.ones((1, 1, 2)), "slots": np.array([3], np.int32)}, states={"cache": pages}
    )
    assert states["cache"].k.dtype == np.float64
    assert states["cache"].k.reshape(-1, 2).tolist() == [[0, 0], [0, 0], [0, 0], [2, 2]]
    assert states["cache"].v.sum() == 2
    assert pages.k.sum() == 0


def test_a_visitor_sees_and_replaces_results() -> None:
    b = Builder()
    x = b.input("x", TensorType(float32, (2,)))
    seen = []

    def visit(node: Any, results: tuple[Any, ...]) -> tuple[Any, ...]:
        seen.append(node.op.name)
        return tuple(r + 1 for r in results)

    out, _ = evaluate(b.build(ops.neg(ops.exp(x))), {"x": np.zeros(2)}, visit=visit)
    assert seen == ["exp", "neg"]
    assert out["out0"].tolist() == [-1.0, -1.0]


def test_unbacked_sizes_are_learnt_from_results() -> None:
    b = Builder()
    x, y = b.input("x", TensorType(float32, (N,))), b.input("y", TensorType(float32, (M,)))
    few = KEPT(x)
    graph = verify(b.build(ops.add(few, y), ops.reshape(few, shape=(sym("kept", 3, unbacked=True), 1))))
    assert check_sizes(graph.checks, {"n": 3, "m": 2}) == graph.checks
    out, _ = evaluate(graph, {"x": np.array([1.0, -1.0, 2.0]), "y": np.ones(2)})
    assert out["out0"].tolist() == [2.0, 3.0]
    assert out["out1"].shape == (2, 1)
    with pytest.raises(GraphError, match="%0: kept is 4, its maximum is 3"):
        evaluate(graph, {"x": np.ones(4), "y": np.ones(4)})


def test_unbacked_sizes_are_checked_as_soon_as_they_are_known_and_must_agree() -> None:
    b = Builder()
    x, y = b.input("x", TensorType(float32, (N,))), b.input("y", TensorType(float32, (M,)))
    few = KEPT(x)
    graph = b.build(ops.add(ops.neg(few), y))
    with pytest.raises(GraphError, match="do not broadcast: kept is 1, m is 3"):
        evaluate(graph, {"x": np.array([1.0, -2.0]), "y": np.ones(3)})
    twice = Builder()
    x, y = (twice.input(name, TensorType(float32, (size,))) for name, size in (("x", N), ("y", M)))
    first, second = KEPT(x), KEPT(y)
    assert first.shape != second.shape  # each use has a size of its own, whatever the op calls it
    evaluate(twice.build(first, second), {"x": np.ones(2), "y": np.ones(1)})


def test_widen() -> None:
    assert widen(np.ones(2, np.float16)).dtype == np.float64
    assert widen(np.ones(2, ml_dtypes.float8_e4m3fn)).dtype == np.float64
    assert widen(np.ones(2, np.int32)).dtype == np.int32
    assert widen(np.ones(2, ml_dtypes.int4)).dtype == ml_dtypes.int4
    assert widen(2.5) == 2.5


def test_a_check_that_nothing_decides_is_an_error() -> None:
    b = Builder()
    x = b.input("x", TensorType(float32, (2,)))
    ghost = b.call(ops.full, (), {"shape": (3,), "value": 1.0, "dtype": float32})
    graph = b.build(ops.add(x, ops.slice(ghost, axis=0, start=0, stop=sym("ghost"))))
    with pytest.raises(GraphError, match="needs a value for 'ghost'"):
        evaluate(graph, {"x": np.ones(2)})
    lost = replace(b.build(x), nodes=())
    with pytest.raises(GraphError, match="do not broadcast: no input and no op tells 2 or min"):
        evaluate(lost, {"x": np.ones(2)})
