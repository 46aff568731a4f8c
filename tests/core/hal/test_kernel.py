"""Kernels mirror their op, the best acceptable one is chosen, and refusals have reasons."""

from __future__ import annotations

from typing import Any

import pytest

from xinheng.core import ops
from xinheng.core.errors import PluginError
from xinheng.core.hal import KernelRegistry, Refusal
from xinheng.core.ir import Builder, Node, TensorType, WeightType, paged_kv
from xinheng.core.ir.dtype import bfloat16, float16, float32, int32


def node_of(made: Any) -> Node:
    return made.builder.build().nodes[-1]  # type: ignore[no-any-return]


def linear(kind: Any = float32, bias: bool = False) -> Node:
    b = Builder()
    x, w = b.input("x", TensorType(kind, (3, 4))), b.parameter("w", WeightType((2, 4), "float32"))
    return node_of(ops.linear(x, w, b.input("bias", TensorType(kind, (2,))) if bias else None))


def softmax(kind: Any = float32, **attributes: Any) -> Node:
    return node_of(ops.softmax(Builder().input("x", TensorType(kind, (3, 4))), **attributes))


def test_the_highest_priority_wins_and_the_first_among_equals() -> None:
    registry = KernelRegistry()
    for name, priority in (("a", 0), ("b", 5), ("c", 5), ("d", -1)):
        registry.register(ops.softmax, name=name, priority=priority)(lambda x, *, axis: x)
    assert [k.name for k in registry.candidates("softmax")] == ["b", "c", "a", "d"]
    assert registry.select(softmax())[0] is registry.candidates("softmax")[0]


def test_refusals_say_why_in_order() -> None:
    registry = KernelRegistry()
    registry.register(ops.softmax, name="half", priority=9, dtypes=(float16, bfloat16))(lambda x, *, axis: x)
    registry.register(ops.softmax, name="picky", priority=8, when=lambda node: "the moon is full")(lambda x, *, axis: x)
    registry.register(ops.softmax, name="silent", priority=7, when=lambda node: False)(lambda x, *, axis: x)
    registry.register(ops.softmax, name="last only", priority=6)(lambda x: x)
    registry.register(ops.softmax, name="any", when=lambda node: node.attributes["axis"] == 0)(lambda x, *, axis: x)
    kernel, refusals = registry.select(softmax(axis=0))
    assert kernel is not None
    assert kernel.name == "any"
    assert refusals == [
        Refusal("half", "takes bfloat16, float16, not float32"),
        Refusal("picky", "the moon is full"),
        Refusal("silent", "its condition does not hold"),
        Refusal("last only", "does not know attribute 'axis'"),
    ]
    assert registry.select(softmax(float16))[0] is registry.candidates("softmax")[0]
    only = registry.select(softmax(), "last only")
    assert only[0] is not None
    assert only[0].name == "last only"
    assert only[1][0] == Refusal("half", "the override asks for @last only")
    assert registry.select(softmax(), "nobody")[0] is None


def test_kernels_may_lack_optional_parts() -> None:
    registry = KernelRegistry()
    registry.register(ops.linear)(lambda x, weight: x)
    assert registry.select(linear())[0] is not None
    assert registry.select(linear(bias=True)) == (None, [Refusal("<lambda>", "does not know operand 'bias'")])


def test_dtypes_of_results_count_where_no_operand_is_a_float() -> None:
    registry = KernelRegistry()
    registry.register(ops.embedding, dtypes=(float16,))(lambda indices, weight, *, dtype: indices)
    for kind, taken in ((float16, True), (float32, False)):
        b = Builder()
        weight = b.parameter("w", WeightType((2, 4), "float32"))
        node = node_of(ops.embedding(b.input("i", TensorType(int32, (3,))), weight, dtype=kind))
        assert (registry.select(node)[0] is not None) == taken


def test_a_child_comes_before_its_parent_among_equals() -> None:
    parent = KernelRegistry()
    child = KernelRegistry(parent)
    parent.register(ops.softmax, name="old")(lambda x, *, axis: x)
    parent.register(ops.exp, name="exp")(lambda x: x)
    parent.register(ops.softmax, name="best", priority=1)(lambda x, *, axis: x)
    child.register(ops.softmax, name="new")(lambda x, *, axis: x)
    assert [k.name for k in child.candidates("softmax")] == ["best", "new", "old"]
    assert child.ops() == ["exp", "softmax"]
    assert parent.ops() == ["exp", "softmax"]
    assert child.candidates("tanh") == []


def add(function: Any, op: Any, **options: Any) -> None:
    KernelRegistry().register(op, **options)(function)


def test_kernels_that_do_not_mirror_their_op_are_refused() -> None:
    def swapped(b: Any, a: Any) -> Any:
        return a

    def by_name(*, a: Any, b: Any) -> Any:
        return a

    for function, op, message in (
        (lambda x: x, ops.rms_norm, "does not mirror op 'rms_norm', which needs 'weight'"),
        (lambda x, weight: x, ops.rms_norm, "does not mirror op 'rms_norm', which needs 'eps'"),
        (lambda x, weight, *, epsilon: x, ops.rms_norm, "has no operand or attribute 'epsilon'"),
        (lambda x, **rest: x, ops.softmax, "has no operand or attribute 'rest'"),
        (swapped, ops.sub, "kernel 'swapped' takes operands in another order than op 'sub': a, b"),
        (by_name, ops.sub, "operand 'a' of op 'sub' is positional"),
        (lambda xs, *, axis: xs, ops.concat, "operand 'xs' of op 'concat' is variadic"),
        (lambda *x, axis=-1: x, ops.softmax, "operand 'x' of op 'softmax' is positional"),
        (lambda x, axis, /: x, ops.softmax, "attribute 'axis' of op 'softmax' is passed by name"),
    ):
        with pytest.raises(PluginError, match=message):
            add(function, op)
    add(lambda a, b, /: a, ops.sub)
    add(lambda *xs, axis: xs, ops.concat)
    add(lambda x, axis=-1: x, ops.softmax)


def test_names_are_taken_once_per_op() -> None:
    registry = KernelRegistry()
    registry.register(ops.exp, name="fast")(lambda x: x)
    registry.register(ops.tanh, name="fast")(lambda x: x)
    with pytest.raises(PluginError, match="op 'exp' has two kernels called 'fast'"):
        registry.register(ops.exp, name="fast")(lambda x: x)


def test_host_operands_must_exist_and_be_inputs() -> None:
    with pytest.raises(PluginError, match="has no operand 'lens' to want on the host"):
        add(lambda x, *, axis: x, ops.softmax, host=("lens",))
    registry = KernelRegistry()

    @registry.register(ops.paged_attention, host=("seq_lens",))
    def attention(
        q: Any,
        cache: Any,
        query_start: Any,
        seq_lens: Any,
        block_table: Any,
        *,
        scale: float,
        window: Any,
        softcap: Any,
    ) -> Any:
        return q

    b = Builder()
    cache = b.state("cache", paged_kv(1, 4, 4, "float32"))
    q = b.input("q", TensorType(float32, (3, 1, 4)))
    start, lens = b.input("start", TensorType(int32, (2,))), b.input("lens", TensorType(int32, (1,)))
    table = b.input("table", TensorType(int32, (1, 2)))
    assert registry.select(node_of(ops.paged_attention(q, cache, start, lens, table, scale=1.0)[0]))[0] is not None
    computed = node_of(ops.paged_attention(q, cache, start, ops.add(lens, 1), table, scale=1.0)[0])
    reason = registry.select(computed)[1][0].reason
    assert reason == "wants 'seq_lens' on the host, but it is a result of the graph, not an input"
    seen = node_of(ops.paged_attention(q, cache, start, lens, table, scale=1.0, causal=False)[0])
    assert registry.select(seen)[1][0].reason == "does not know attribute 'causal'"


def test_a_planner_has_all_parameters_of_its_op() -> None:
    class Planner:
        def plan(self, node: Node, bounds: Any) -> Any:
            return lambda *operands, **attributes: operands[0]

    registry = KernelRegistry()
    registry.register(ops.linear, name="planned")(Planner())
    kernel, _ = registry.select(linear(bias=True))
    assert kernel is not None
    assert kernel.parameters == {"x", "weight", "bias"}
