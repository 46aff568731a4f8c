"""Builders make well-formed graphs or say why not."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from xinheng.core import ops
from xinheng.core.errors import GraphError
from xinheng.core.ir import Builder, Op, StateType, TensorType, Tolerance, Value, WeightType, paged_kv, sym, verify
from xinheng.core.ir.dtype import bfloat16, bool_, float16, float32, int32
from xinheng.core.ir.op import State, Tensor

X = TensorType(float32, (3, 4))
CACHE = paged_kv(2, 4, 4, "float32")


def test_roots_nodes_and_outputs() -> None:
    b = Builder("net")
    x, w = b.input("x", X), b.parameter("w", WeightType((5, 4), "float32"))
    y = ops.linear(x, w)
    graph = verify(b.build(y, last=ops.neg(y)))
    assert [v.name for v in graph.inputs] == ["x"]
    assert [v.name for v in graph.parameters] == ["w"]
    assert [(n.op.name, n.results[0].name) for n in graph.nodes] == [("linear", "0"), ("neg", "1")]
    assert {name: v.name for name, v in graph.outputs.items()} == {"out0": "0", "last": "1"}
    assert [v.name for v in graph.values()] == ["x", "w", "0", "1"]
    assert (y.shape, y.dtype, y.tensor) == ((3, 5), float32, TensorType(float32, (3, 5)))
    with pytest.raises(GraphError, match="value %w is weight<float32>\\[5, 4\\], not a tensor"):
        _ = w.shape


def test_graphs_are_immutable() -> None:
    b = Builder()
    x = b.input("x", X)
    graph = b.build(ops.neg(x))
    with pytest.raises(FrozenInstanceError):
        graph.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        graph.outputs["y"] = x  # type: ignore[index]
    with pytest.raises(TypeError):
        graph.nodes[0].attributes["y"] = 1  # type: ignore[index]


def test_names_are_unique_and_printable() -> None:
    b = Builder()
    x = b.input("x", X)
    b.input("0", X)
    assert ops.neg(x).name == "1"
    with pytest.raises(GraphError, match="graph 'graph' has two values called 'x'"):
        b.parameter("x", X)
    for name in ("", "a b", "a,b", "%a", "a=b", "f(x)", "{"):
        with pytest.raises(GraphError, match="value name"):
            b.input(name, X)
        with pytest.raises(GraphError, match="output name"):
            b.build(**{name: x})
        with pytest.raises(GraphError, match="graph name"):
            Builder(name)
    with pytest.raises(GraphError, match="two outputs called 'out0'"):
        b.build(x, out0=x)
    assert b.input("model.layers.0:k-proj[1]/x", X).name == "model.layers.0:k-proj[1]/x"


def test_given_result_names_must_be_as_many_as_results() -> None:
    b = Builder()
    x = b.input("x", X)
    with pytest.raises(GraphError, match="topk has 2 results, 1 names are given"):
        b.call_named(ops.topk, (x,), {"k": 1}, ["a"])
    assert [v.name for v in b.call_named(ops.topk, (x,), {"k": 1}, ["a", "b"])] == ["a", "b"]


def test_scalar_constants() -> None:
    b = Builder()
    x = b.input("x", X)
    ops.add(ops.mul(x, 2), ops.mul(x, 2.0))
    n = b.constant(3, int32)
    graph = b.build(ops.sub(x, 3), n)
    assert [(c.name, c.data, c.dtype.name) for c in graph.constants] == [
        ("c0", 2.0, "float32"),
        ("c1", 3, "int32"),
        ("c2", 3.0, "float32"),
    ]
    assert type(n.data) is int
    assert b.constant(True, bool_).data == 1
    with pytest.raises(GraphError, match="a scalar constant needs a dtype"):
        b.constant(1.0)
    for bad in (1.5, float("inf"), float("nan")):
        with pytest.raises(GraphError, match=f"constant {bad} is not an integer"):
            b.constant(bad, int32)


def test_signed_zeros_are_different_numbers() -> None:
    b = Builder()
    x = b.input("x", X)
    assert len(b.build(ops.add(ops.add(x, 0.0), -0.0)).constants) == 2


def test_array_constants_are_copied_and_read_only() -> None:
    b = Builder()
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = b.constant(given)
    given[0, 0] = 9
    assert isinstance(value.data, np.ndarray)
    assert value.data[0, 0] == 0
    assert not value.data.flags.writeable
    assert given.flags.writeable
    assert b.constant(value.data).data is value.data
    assert b.constant(given.T).type == TensorType(float32, (3, 2))
    assert b.constant(np.array(2.0, np.float32)).type == TensorType(float32, ())
    narrow = b.constant(np.array([1 + 2.0**-8 + 2.0**-40]), bfloat16)
    assert isinstance(narrow.data, np.ndarray)
    assert (narrow.data.dtype, float(narrow.data[0])) == (bfloat16.numpy, 1 + 2.0**-7)
    swapped = b.constant(given.astype(">f4"))
    assert isinstance(swapped.data, np.ndarray)
    assert swapped.data.dtype == np.dtype("<f4")


def test_sizes_that_may_differ_become_checks() -> None:
    b = Builder()
    n, m = sym("n"), sym("m")
    x, y = b.input("x", TensorType(float32, (n, 4))), b.input("y", TensorType(float32, (m, 4)))
    ops.add(x, y)
    graph = verify(b.build(ops.sub(x, y)))
    assert [(str(c.left), str(c.right)) for c in graph.checks] == [("n", "m")]
    with pytest.raises(GraphError, match="do not broadcast"):
        ops.add(x, b.input("z", TensorType(float32, (n, 3))))


def test_symbols_of_types_attributes_and_checks() -> None:
    b = Builder()
    n = sym("n", 8)
    x = b.input("x", TensorType(float32, (n, 4)))
    b.call(ops.arange, (), {"size": sym("k"), "dtype": int32})
    graph = b.build(x)
    assert {name: s.maximum for name, s in graph.symbols().items()} == {"n": 8, "k": None}
    other = Builder()
    other.input("x", TensorType(float32, (n,)))
    other.input("y", TensorType(float32, (sym("n", 9),)))
    with pytest.raises(GraphError, match="size 'n' is declared in two ways"):
        other.build().symbols()


def cache_of(b: Builder) -> tuple[Value, Any]:
    cache = b.state("cache", CACHE)
    k = b.input("k", TensorType(float32, (3, 2, 4)))
    slots = b.input("slots", TensorType(int32, (3,)))

    def write(to: Value) -> Any:
        return ops.write_cache(to, k, k, slots)

    return cache, write


def attend(b: Builder, cache: Value) -> Any:
    q = b.input(f"q{len(b._names)}", TensorType(float32, (3, 2, 4)))
    start, lens = (b.input(f"{n}{len(b._names)}", TensorType(int32, (s,))) for n, s in (("start", 2), ("lens", 1)))
    return ops.paged_attention(
        q, cache, start, lens, b.input(f"t{len(b._names)}", TensorType(int32, (1, 4))), scale=1.0
    )


def test_states_are_linear() -> None:
    b = Builder()
    cache, write = cache_of(b)
    attend(b, cache)
    attend(b, cache)
    second = write(cache)
    message = "state %cache was already written; use the state that write returned"
    with pytest.raises(GraphError, match=message):
        attend(b, cache)
    with pytest.raises(GraphError, match=message):
        write(cache)
    third = write(second)
    graph = verify(b.build(attend(b, third)[0]))
    assert graph.states == ((cache, third),)


def test_an_untouched_state_ends_as_it_began() -> None:
    b = Builder()
    cache, _ = cache_of(b)
    assert verify(b.build()).states == ((cache, cache),)


def _second(source: StateType, target: StateType) -> StateType:
    return target


def _both(source: StateType, target: StateType) -> tuple[StateType, StateType]:
    return source, target


def test_an_op_writes_all_states_it_takes_or_none() -> None:
    def copy_into(source: State, target: State) -> State:
        """Copy one cache into another."""
        return target

    broken: Op[..., Any] = Op(copy_into, Tolerance.EXACT, 1)
    broken.infer(_second)
    b = Builder()
    first, second = b.state("first", CACHE), b.state("second", CACHE)
    with pytest.raises(GraphError, match="copy_into: returns 1 states for 2; it must return all it takes"):
        broken(first, second)
    swap: Op[..., Any] = Op(copy_into, Tolerance.EXACT, 1)
    swap.infer(_both)
    left, right = swap(first, second)
    assert verify(b.build()).states == ((first, left), (second, right))


def _narrowed(cache: StateType, x: TensorType) -> StateType:
    return paged_kv(2, 4, 4, float16.name)


def test_state_results_keep_the_type() -> None:
    def recode(cache: State, x: Tensor) -> State:
        """Change the type of a state."""
        return cache

    broken: Op[..., Any] = Op(recode, Tolerance.EXACT, 1)
    broken.infer(_narrowed)
    b = Builder()
    with pytest.raises(GraphError, match="recode: returns 1 states for 1"):
        broken(b.state("cache", CACHE), b.input("x", X))


def test_state_types_print_and_give_their_fields() -> None:
    assert CACHE["heads"] == 2
    with pytest.raises(GraphError, match="state 'paged_kv' has no field 'width'; it has heads, k_dim, v_dim, scheme"):
        _ = CACHE["width"]
    assert str(CACHE) == "state<paged_kv heads=2 k_dim=4 v_dim=4 scheme=float32>"
    assert str(StateType("odd", ())) == "state<odd>"
