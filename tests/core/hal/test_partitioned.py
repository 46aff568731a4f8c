"""A graph on several devices: tensors cross, states and weights do not, and nothing of it changes results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import DeviceError, GraphError, UnsupportedOp
from xinheng.core.hal import (
    Choice,
    KernelExecutable,
    Numerics,
    PartitionedExecutable,
    Profile,
    ReferenceDevice,
    StateSpace,
    WeightPart,
    WeightSource,
)
from xinheng.core.ir import Builder, Graph, TensorType, WeightType, paged_kv, sym
from xinheng.core.ir.dtype import float32, int32
from xinheng.core.ops import OPSET
from xinheng.core.passes import partition
from xinheng.core.receipt import Crossing, Layout

from ..random_graphs import feeds, graphs, weights
from ..toy import Held, Toy

N = sym("n")
X = TensorType(float32, (N, 4))
ONES = np.ones((2, 4), np.float32)
EXACT = ReferenceDevice("sim:exact")


class Weighted(Toy):
    """A toy device with weights; it notes what reads them."""

    def __init__(self, *ops: str, spec: str = "toy:0") -> None:
        super().__init__(*ops, spec=spec)
        self.readers: list[list[str]] = []

    def prepare(self, source: WeightSource, uses: Any) -> Any:
        self.readers.append(list(uses))
        return Held(self.spec, super().prepare(source, uses))

    def layout_of(self, buffer: Any) -> tuple[str, int]:
        return super().layout_of(self.open(buffer))


def chain() -> Graph:
    """exp here, neg there, exp here, neg there."""
    b = Builder()
    return b.build(y=ops.neg(ops.exp(ops.neg(ops.exp(b.input("x", X))))))


def test_each_part_runs_where_its_kernels_are() -> None:
    device, other = Toy("exp"), Toy("neg", spec="other:1")
    exe = compile(chain(), device, fallback=other, bounds={"n": 16})
    assert isinstance(exe, PartitionedExecutable)
    assert [(part.device.spec, len(part.graph.nodes)) for part in exe.parts] == [("toy:0", 1), ("other:1", 1)] * 2
    bound = exe.bind({})
    bound.run({"x": ONES}).wait()
    np.testing.assert_allclose(device.download(bound.outputs["y"]), -np.exp(-np.exp(ONES)), rtol=1e-6)
    assert (device.uploads, other.uploads) == (3, 2)
    assert exe.receipt.crossings == (
        Crossing("toy:0", "other:1", 2, 2 * 16 * 4 * 4),
        Crossing("other:1", "toy:0", 2, 2 * 16 * 4 * 4),
    )
    assert exe.receipt.summary() == "2 ops on toy:0, 2 ops on other:1 (moved)"


def test_a_tensor_crosses_once_however_many_read_it() -> None:
    b = Builder()
    x = ops.exp(b.input("x", X))
    graph = b.build(ops.exp(ops.neg(x)), ops.abs(ops.neg(x)), x)
    device, other = Toy("exp"), Toy("neg", "abs", spec="other:1")
    exe = compile(graph, device, fallback=other)
    bound = exe.bind({})
    bound.run({"x": ONES})
    assert (other.uploads, exe.receipt.crossings[0]) == (1, Crossing("toy:0", "other:1", 1, None))
    assert device.download(bound.outputs["out2"]).shape == (2, 4)


def test_nothing_here_at_all() -> None:
    device = Toy()
    exe = compile(chain(), device, fallback=EXACT)
    assert (exe.device, exe.receipt.by_device(), exe.receipt.moved) == (device, {"sim:exact": 4}, 4)
    bound = exe.bind({})
    for x in (ONES, device.upload(ONES, float32)):
        bound.run({"x": x})
        assert isinstance(bound.outputs["y"], Held)
        assert device.download(bound.outputs["y"]).shape == (2, 4)


def test_three_devices() -> None:
    numerics = Numerics(overrides={"exp": "reference"})
    receipt = compile(chain(), Toy("exp", "abs"), fallback=EXACT, numerics=numerics).receipt
    assert receipt.by_device() == {"reference": 2, "sim:exact": 2}
    assert [line.refused for line in receipt.lines if line.op == "exp"] == [
        (("device", "the override asks for the reference"),)
    ]


@st.composite
def placed(draw: Any) -> tuple[Graph, dict[int, int]]:
    graph = draw(graphs(float32, 6))
    return graph, {id(node): draw(st.integers(0, 2)) for node in graph.nodes}


DEVICES = tuple(Weighted(*OPSET, spec=f"toy:{i}") for i in range(3))


@settings(max_examples=60, deadline=None)
@given(placed())
def test_moving_never_changes_results(case: tuple[Graph, dict[int, int]]) -> None:
    graph, places = case
    parts = partition(graph, lambda node: DEVICES[places[id(node)]])
    made = []
    for part in parts:
        kernels = [part.place.kernels.select(node)[0] for node in part.nodes]
        chosen = [Choice(kernel, part.place) for kernel in kernels if kernel is not None]
        made.append(part.place.compile(part.graph, chosen, {}))
    cut = PartitionedExecutable(graph, DEVICES[0], made, {})
    found = [EXACT.kernels.select(node)[0] for node in graph.nodes]
    whole = KernelExecutable(graph, EXACT, [Choice(kernel, EXACT) for kernel in found if kernel is not None], {})
    inputs = {v.name: feeds(graph, 3)[v.name].astype(v.dtype.numpy) for v in graph.inputs}
    sources = {name: source(name, value.astype(np.float32)) for name, value in weights(graph).items()}
    outputs = []
    for exe in (cut, whole):
        bound = exe.bind({name: exe.prepare(name, s) for name, s in sources.items()})
        bound.run(inputs).wait()
        outputs.append({name: exe.device.download(buffer) for name, buffer in bound.outputs.items()})
    for name, want in outputs[1].items():
        np.testing.assert_array_equal(outputs[0][name], want)


def source(name: str, values: Any) -> WeightSource:
    data = np.ascontiguousarray(values, np.float32).view(np.uint8)
    return WeightSource(name, values.shape, (WeightPart("float32", values.shape[0], lambda: data),))


def tied() -> Graph:
    b = Builder()
    table = b.parameter("table", WeightType((3, 4), "float32"))
    x = ops.embedding(b.input("ids", TensorType(int32, (N,))), table, dtype=float32)
    scale = b.parameter("scale", TensorType(float32, (4,)))
    return b.build(ops.linear(ops.mul(ops.exp(ops.mul(x, scale)), scale), table))


TABLE = source("table", np.arange(12.0).reshape(3, 4) / 10)
SCALE = np.array([1, 2, 3, 4], np.float32)


def test_a_weight_that_two_devices_read_is_on_both_and_the_receipt_says_so() -> None:
    device, other = Weighted("linear", "mul"), Weighted("embedding", "exp", spec="other:1")
    exe = compile(tied(), device, fallback=other)
    buffers = {"table": exe.prepare("table", TABLE), "scale": exe.prepare("scale", SCALE)}
    assert (device.readers, other.readers) == ([["linear"]], [["embedding"]])
    assert exe.receipt.layouts == (
        Layout("float32", "expanded to float32", 1, 48, 48),
        Layout("float32", "a copy on other:1, expanded to float32", 1, 48, 48),
    )
    bound = exe.bind(buffers)
    bound.run({"ids": np.array([2, 0], np.int32)})
    rows = TABLE.unpack()[[2, 0]]
    want = np.exp(rows * SCALE) * SCALE @ TABLE.unpack().T
    np.testing.assert_allclose(device.download(bound.outputs["out0"]), want, rtol=1e-6)


def test_one_buffer_serves_all_parts_of_a_device() -> None:
    device = Weighted("linear", "embedding", "mul")
    exe = compile(tied(), device, fallback=EXACT)
    exe.prepare("table", TABLE)
    assert sorted(device.readers[0]) == ["embedding", "linear"]
    assert exe.receipt.layouts == (Layout("float32", "expanded to float32", 1, 48, 48),)


def test_a_weight_read_elsewhere_only() -> None:
    device = Weighted("embedding", "mul", "exp")
    exe = compile(tied(), device, fallback=Weighted("linear", spec="other:1"))
    assert exe.prepare("scale", SCALE).device == "toy:0"
    exe.prepare("table", TABLE)
    assert [entry.layout for entry in exe.receipt.layouts][-1] == "a copy on other:1, expanded to float32"
    both = compile(tied(), Weighted("mul"), fallback=EXACT)
    both.prepare("table", TABLE)
    assert [entry.layout for entry in both.receipt.layouts] == ["expanded to float32 on sim:exact"]


def test_a_copied_tensor_stands_in_the_receipt_too() -> None:
    b = Builder()
    scale = b.parameter("scale", TensorType(float32, (4,)))
    graph = b.build(ops.add(ops.mul(b.input("x", X), scale), scale))
    exe = compile(graph, Toy("mul"), fallback=EXACT)
    bound = exe.bind({"scale": exe.prepare("scale", SCALE)})
    assert exe.receipt.layouts == (Layout("float32", "a copy on sim:exact", 1, 16, 16),)
    bound.run({"x": ONES})
    np.testing.assert_array_equal(bound.outputs["out0"].array, ONES * SCALE + SCALE)


def attending() -> Graph:
    b = Builder()
    cache = b.state("cache", paged_kv(1, 2, 2, "float32"))
    k, slots = b.input("k", TensorType(float32, (N, 1, 2))), b.input("slots", TensorType(int32, (N,)))
    start, lens = b.input("start", TensorType(int32, (2,))), b.input("lens", TensorType(int32, (1,)))
    cache = ops.write_cache(cache, ops.exp(k), k, slots)
    return b.build(
        ops.paged_attention(k, cache, start, lens, b.input("table", TensorType(int32, (1, 2))), scale=1.0)[0]
    )


def attend(exe: Any) -> Any:
    rng = np.random.default_rng(0)
    bound = exe.bind(exe.allocate_state(StateSpace(2, 2)))
    for slot in range(3):
        bound.run(
            {
                "k": rng.normal(size=(1, 1, 2)).astype(np.float32),
                "slots": np.array([slot], np.int32),
                "start": np.array([0, 1], np.int32),
                "lens": np.array([slot + 1], np.int32),
                "table": np.array([[0, 1]], np.int32),
            }
        ).wait()
    return exe.device.download(bound.outputs["out0"])


def test_a_state_moves_with_all_its_ops() -> None:
    device = Toy("exp", "write_cache")
    exe = compile(attending(), device, fallback=EXACT)
    lines = {line.op: (line.device, line.refused) for line in exe.receipt.lines}
    assert lines["exp"] == ("toy:0", ())
    assert lines["write_cache"][0] == lines["paged_attention"][0] == "sim:exact"
    reason = "paged_attention uses the same state and does not run on toy:0"
    assert lines["write_cache"][1] == (("toy_write_cache", reason),)
    np.testing.assert_array_equal(attend(exe), attend(compile(attending(), EXACT)))


def test_a_state_that_would_be_on_two_devices_is_refused() -> None:
    numerics = Numerics(overrides={"paged_attention": "reference"})
    with pytest.raises(
        UnsupportedOp,
        match=r"state cache cannot be on two devices \(write_cache can only run on sim:exact; paged_attention can only "
        r"run on reference\); change runtime\.overrides for all ops of a state alike",
    ):
        compile(attending(), EXACT, numerics=numerics)
    both = Numerics(overrides={"paged_attention": "reference", "write_cache": "reference"})
    np.testing.assert_array_equal(
        attend(compile(attending(), Toy("exp"), numerics=both)), attend(compile(attending(), EXACT))
    )


def test_an_op_that_no_device_has_is_named() -> None:
    with pytest.raises(
        UnsupportedOp, match=r"toy:0 cannot run write_cache .* set runtime\.fallback to cpu or reference"
    ):
        compile(attending(), Toy("exp"))
    with pytest.raises(UnsupportedOp, match=r"toy:0 cannot run write_cache .* neither can other:1"):
        compile(attending(), Toy("exp"), fallback=Toy(spec="other:1"))


def test_errors_come_before_anything_has_run() -> None:
    device = Toy("exp")
    bound = compile(chain(), device, fallback=EXACT, bounds={"n": 3}).bind({})
    before = device.uploads
    with pytest.raises(GraphError, match="input 'x' is float64, the graph wants float32"):
        bound.run({"x": np.ones((2, 4))})
    with pytest.raises(GraphError, match="input 'x' is missing"):
        bound.run({})
    with pytest.raises(DeviceError, match="n is 4, but the graph was compiled for at most 3"):
        bound.run({"x": np.ones((4, 4), np.float32)})
    assert device.uploads == before
    with pytest.raises(GraphError, match="no buffer for 'scale'"):
        compile(tied(), Weighted("mul"), fallback=EXACT).bind({"table": 1})
    with pytest.raises(GraphError, match="has no parameter 'other'"):
        compile(tied(), Weighted("mul"), fallback=EXACT).prepare("other", SCALE)
    with pytest.raises(GraphError, match="no space is given for state 'cache'"):
        compile(attending(), Toy("exp"), fallback=EXACT).allocate_state({})


def test_run_time_checks_hold_across_parts() -> None:
    b = Builder()
    x, y = b.input("x", X), b.input("y", TensorType(float32, (sym("m"), 4)))
    bound = compile(b.build(ops.add(ops.exp(x), y)), Toy("exp"), fallback=EXACT).bind({"y": ONES})
    bound.run({"x": ONES})
    with pytest.raises(GraphError, match="do not broadcast"):
        bound.run({"x": np.ones((3, 4), np.float32)})


def test_a_profile_sees_the_kernels_of_all_parts() -> None:
    profile = Profile()
    compile(chain(), Toy("exp"), fallback=EXACT).bind({}).run({"x": ONES}, profile=profile)
    assert [(span.op, span.kernel) for span in profile.spans] == [("exp", "toy_exp"), ("neg", "reference")] * 2


def test_waiting_waits_for_every_device() -> None:
    class Late(Toy):
        waited = 0

        def event(self) -> Any:
            return self

        def wait(self) -> None:
            self.waited += 1

    device, other = Late("exp"), Late("neg", spec="other:1")
    event = compile(chain(), device, fallback=other).bind({}).run({"x": ONES})
    assert (device.waited, other.waited) == (0, 0)
    event.wait()
    assert device.waited and other.waited
