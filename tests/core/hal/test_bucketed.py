"""Padding to buckets changes no result, and what it would change is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import DeviceError, GraphError, UnsupportedOp
from xinheng.core.hal import BucketedExecutable, Capabilities, Placement, ReferenceDevice, WeightPart, WeightSource
from xinheng.core.hal.bucketed import buckets, fill
from xinheng.core.hal.executable import Executable
from xinheng.core.hal.padding import EDGE, fills_of
from xinheng.core.ir import Builder, Graph, TensorType, Value, WeightType, evaluate, paged_kv, sym
from xinheng.core.ir.dtype import DTYPES, float32, int32
from xinheng.core.passes import specialise

TOKENS, ROWS = sym("tokens"), sym("rows")


class Fixed(ReferenceDevice):
    """The reference, for fixed sizes only; it remembers for which it compiled."""

    def __init__(self) -> None:
        super().__init__("fixed:0", "a device of fixed sizes")
        self.capabilities = Capabilities(frozenset(DTYPES.values()), dynamic_shapes=False)
        self.compiled: list[tuple[Any, ...]] = []

    def compile(self, graph: Graph, placement: Placement, bounds: Mapping[str, int]) -> Executable:
        assert not graph.symbols()
        self.compiled.append(tuple(v.shape for v in graph.inputs))
        return super().compile(graph, placement, bounds)


def made(build: Callable[[Builder, Value], Any], shape: tuple[Any, ...] = (TOKENS, 4)) -> Graph:
    """A graph of one float32 input x."""
    b = Builder("made")
    result = build(b, b.input("x", TensorType(float32, shape)))
    return b.build(*(result if isinstance(result, tuple) else (result,)))


def test_buckets_double_up_to_the_bound() -> None:
    assert [buckets(bound) for bound in (1, 2, 7, 8)] == [(1,), (1, 2), (1, 2, 4, 7), (1, 2, 4, 8)]


def test_fillings() -> None:
    starts = np.array([0, 3, 5], np.int32)
    assert fill(starts, (5,), EDGE).tolist() == [0, 3, 5, 5, 5]
    assert fill(starts, (4,), -1).tolist() == [0, 3, 5, -1]
    assert fill(np.ones((1, 2), np.int32), (2, 3), 0).tolist() == [[1, 1, 0], [0, 0, 0]]
    assert fill(np.zeros(0, np.int32), (2,), EDGE).tolist() == [0, 0]
    assert fill(starts, (3,), -1) is starts


@pytest.mark.parametrize("tokens", [0, 1, 3, 4, 5, 8])
def test_results_are_those_of_any_sizes(tokens: int) -> None:
    def build(b: Builder, x: Value) -> Any:
        y = ops.softmax(ops.mul(x, 3.0))
        return y, ops.reshape(ops.permute(y, axes=(0, 1)), shape=(TOKENS * 4,)), ops.permute(y, axes=(1, 0))

    graph, device = made(build), Fixed()
    x = np.random.default_rng(0).normal(size=(tokens, 4)).astype(np.float32)
    executable = compile(graph, device, bounds={"tokens": 8})
    bound = executable.bind({})
    bound.run({"x": x}).wait()
    for name, want in evaluate(graph, {"x": x})[0].items():
        assert bound.outputs[name].shape == want.shape
        np.testing.assert_allclose(device.download(bound.outputs[name]), want, rtol=1e-6)
    used = next(size for size in (1, 2, 4, 8) if size >= tokens)
    assert device.compiled == [((8, 4),)] + ([((used, 4),)] if used != 8 else [])
    with pytest.raises(DeviceError, match="fixed:0: tokens is 9, its largest bucket is 8"):
        bound.run({"x": np.zeros((9, 4), np.float32)})


def test_each_combination_is_compiled_once_and_shares_the_weights() -> None:
    b, device = Builder("shared"), Fixed()
    weight = b.parameter("w", WeightType((3, 4), "float32"))
    y = ops.linear(b.input("x", TensorType(float32, (TOKENS, 4))), weight)
    executable = compile(b.build(y=ops.index_select(y, b.input("rows", TensorType(int32, (ROWS,))))), device,
                         bounds={"tokens": 4, "rows": 2})  # fmt: skip
    assert isinstance(executable, BucketedExecutable)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    source = WeightSource("w", (3, 4), (WeightPart("float32", 3, lambda: values.view(np.uint8)),))
    bound = executable.bind({"w": executable.prepare("w", source)})
    for tokens, rows in [(3, [2]), (4, [0]), (2, [1, 0]), (3, [1])]:
        x = np.eye(tokens, 4, dtype=np.float32)
        bound.run({"x": x, "rows": np.array(rows, np.int32)})
        np.testing.assert_array_equal(bound.outputs["y"], (x @ values.T)[rows])
    assert executable.compiled == 3
    assert len(device.compiled) == 3
    assert executable.receipt.layouts[0].weights == 1
    assert executable.receipt.notes == (
        "sizes are padded to the next of tokens 1, 2, 4; rows 1, 2; fixed:0 takes fixed sizes only",
    )


def test_an_input_may_be_bound_or_be_a_buffer() -> None:
    graph = made(lambda b, x: ops.add(x, b.input("y", TensorType(float32, (TOKENS, 4)))))
    device = Fixed()
    x, y = np.full((3, 4), 2, np.float32), device.upload(np.ones((3, 4), np.float32), float32)
    bound = compile(graph, device, bounds={"tokens": 4}).bind({"y": y})
    bound.run({"x": device.upload(x, float32)})
    np.testing.assert_array_equal(bound.outputs["out0"], x + 1)


def attention(b: Builder, x: Value, *, computed: bool = False) -> Any:
    seqs = sym("seqs")
    start = b.input("query_start", TensorType(int32, (seqs + 1,)))
    lengths = b.input("seq_lens", TensorType(int32, (seqs,)))
    table = b.input("block_table", TensorType(int32, (seqs, sym("blocks"))))
    slots = b.input("slots", TensorType(int32, (TOKENS,)))
    if computed:
        slots = ops.add(slots, 1)
    heads = ops.reshape(x, shape=(TOKENS, 1, 4))
    cache = ops.write_cache(b.state("cache", paged_kv(1, 4, 4, "float32")), heads, heads, slots)
    return ops.paged_attention(heads, cache, start, lengths, table, scale=1.0)[0]


def test_operands_of_paged_ops_are_filled_so_that_they_name_nothing() -> None:
    assert fills_of(made(attention)) == {
        "x": 0, "query_start": EDGE, "seq_lens": 0, "block_table": 0, "slots": -1,
    }  # fmt: skip


def test_an_input_with_two_fillings_is_refused() -> None:
    def build(b: Builder, x: Value) -> Any:
        out = attention(b, x)
        slots = next(v for v in b._roots["input"] if v.name == "slots")
        table = b.input("other", TensorType(int32, (TOKENS - 1, 1)))
        lengths = b.input("lengths", TensorType(int32, (TOKENS - 1,)))
        heads = ops.reshape(x, shape=(TOKENS, 1, 4))
        state = b.state("second", paged_kv(1, 4, 4, "float32"))
        return out, ops.paged_attention(heads, state, slots, lengths, table, scale=1.0)[0]

    with pytest.raises(UnsupportedOp, match="input 'slots' cannot be padded: two ops want other fillings"):
        fills_of(made(build))


def sorted_rows(b: Builder, x: Value) -> Any:
    experts = b.input("experts", TensorType(int32, (TOKENS, 1)))
    return ops.moe_permute(x, experts, num_experts=2)


def unsorted_rows(b: Builder, x: Value) -> Any:
    rows, order, counts = sorted_rows(b, x)
    weight = b.parameter("w", WeightType((2, 3, 4), "float32"))
    weights = b.input("weights", TensorType(float32, (TOKENS, 1)))
    return ops.moe_unpermute(ops.silu(ops.grouped_linear(rows, weight, counts)), order, weights)


FINE: dict[str, Callable[[Builder, Value], Any]] = {
    "softmax of a row": lambda b, x: ops.softmax(x, axis=1),
    "sum of a row": lambda b, x: ops.sum(x, axis=-1),
    "matmul of rows": lambda b, x: ops.matmul(x, b.constant(np.eye(4, dtype=np.float32))),
    "columns": lambda b, x: ops.concat(*ops.split(x, sizes=(1, 3), axis=1), axis=1),
    "more axes": lambda b, x: ops.reshape(x, shape=(TOKENS, 2, 2)),
    "positions": lambda b, x: b.call(ops.arange, (), {"size": TOKENS, "dtype": int32}),
    "experts": unsorted_rows,
}
REFUSED: dict[str, tuple[Callable[[Builder, Value], Any], str]] = {
    "sum over tokens": (lambda b, x: ops.sum(x, axis=0), r"sum .* along a padded axis of float32\[tokens, 4\]"),
    "softmax over tokens": (lambda b, x: ops.softmax(x, axis=0), "softmax .* padded axis"),
    "argmax over tokens": (lambda b, x: ops.argmax(x, axis=-2), "argmax .* padded axis"),
    "joined": (lambda b, x: ops.concat(x, x, axis=0), "concat .* padded axis"),
    "cut": (lambda b, x: ops.slice(x, axis=0, start=0, stop=2), "slice .* padded axis"),
    "cut by size": (lambda b, x: ops.slice(x, axis=1, start=0, stop=TOKENS), "slice .* attribute 'stop'"),
    "a size as a number": (
        lambda b, x: b.call(ops.full, (), {"shape": (1,), "value": TOKENS, "dtype": float32}),
        "full .* attribute 'value' is a size",
    ),
    "inner product": (lambda b, x: ops.matmul(ops.permute(x, axes=(1, 0)), x), "matmul .* inner size is padded"),
    "norm over tokens": (
        lambda b, x: ops.topk(ops.permute(x, axes=(1, 0)), k=1),
        r"topk .* float32\[4, tokens\] is padded inside its rows",
    ),
    "flattened inside": (
        lambda b, x: ops.reshape(ops.permute(x, axes=(1, 0)), shape=(TOKENS * 4,)),
        "reshape .* joins or splits a padded axis",
    ),
    "sorted": (sorted_rows, "output 'out0' .* its rows are sorted by expert"),
    "cut out of sorted": (
        lambda b, x: ops.index_select(sorted_rows(b, x)[0], b.input("at", TensorType(int32, (1,)))),
        "index_select .* reads rows that are sorted by expert",
    ),
    "computed slots": (lambda b, x: attention(b, x, computed=True), "write_cache .* slots is computed inside"),
    "an unknown op": (
        lambda b, x: ops.quantize(x, b.constant(1.0, float32), dtype=int32), "quantize .* not known to treat padded"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_ops_that_treat_rows_apart_are_taken(name: str) -> None:
    assert isinstance(compile(made(FINE[name]), Fixed(), bounds={"tokens": 4}), BucketedExecutable)


@pytest.mark.parametrize("name", REFUSED)
def test_ops_that_padding_would_change_are_refused(name: str) -> None:
    build, says = REFUSED[name]
    bounds = {"tokens": 4, "seqs": 2, "blocks": 2}
    with pytest.raises(UnsupportedOp, match=f"fixed:0 takes fixed sizes only, and {says}"):
        compile(made(build), Fixed(), bounds=bounds)


def test_sorted_rows_give_the_same_when_padded() -> None:
    graph, device, rng = made(unsorted_rows), Fixed(), np.random.default_rng(1)
    values = rng.normal(size=(2, 3, 4)).astype(np.float32)
    executable = compile(graph, device, bounds={"tokens": 8})
    source = WeightSource("w", (2, 3, 4), (WeightPart("float32", 6, lambda: values.reshape(6, 4).view(np.uint8)),))
    bound = executable.bind({"w": executable.prepare("w", source)})
    inputs = {
        "x": rng.normal(size=(5, 4)).astype(np.float32),
        "experts": np.array([[1], [0], [1], [1], [0]], np.int32),
        "weights": np.ones((5, 1), np.float32),
    }
    bound.run(inputs)
    want = evaluate(graph, inputs, {"w": values})[0]["out0"]
    np.testing.assert_allclose(bound.outputs["out0"], want, rtol=1e-6, atol=1e-6)


def test_sizes_that_only_a_run_tells_are_refused() -> None:
    b = Builder("late")
    state, lengths = b.state("cache", paged_kv(1, 4, 4, "float32")), b.input("n", TensorType(int32, (sym("seqs"),)))
    table = b.input("table", TensorType(int32, (sym("seqs"), 2)))
    with pytest.raises(UnsupportedOp, match="size 'gathered' of graph 'late' is known only after"):
        compile(b.build(*ops.gather_kv_cache(state, lengths, table)), Fixed(), bounds={"seqs": 4})


def test_fixed_graphs_need_no_buckets() -> None:
    assert not isinstance(compile(made(lambda b, x: ops.neg(x), (3, 4)), Fixed()), BucketedExecutable)


def test_specialised_graphs_have_numbers_for_sizes() -> None:
    graph = made(lambda b, x: ops.reshape(x, shape=(TOKENS * 2, 2)))
    fixed = specialise(graph, {"tokens": 5})
    assert fixed.inputs[0].shape == (5, 4)
    assert fixed.outputs["out0"].shape == (10, 2)
    assert fixed.nodes[0].attributes["shape"] == (10, 2)
    halves = made(lambda b, x: ops.add(x, b.input("y", TensorType(float32, (ROWS, 4)))))
    with pytest.raises(GraphError):
        specialise(halves, {"tokens": 5, "rows": 4})
