"""The default executable: what it gives to kernels, what it refuses, and what it forgets when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import DeviceError, GraphError
from xinheng.core.hal import KernelRegistry, ReferenceDevice, StateSpace, WeightPart, WeightSource
from xinheng.core.ir import Builder, Graph, Op, TensorType, Tolerance, Value, WeightType, paged_kv, sym
from xinheng.core.ir.dtype import bool_, float16, float32, int32
from xinheng.core.ir.op import Tensor
from xinheng.core.schemes import scheme

from ..toy import Held, Toy

N = sym("n", 8)
X = TensorType(float32, (N, 4))
ONES = np.ones((2, 4), np.float32)
REFERENCE = ReferenceDevice()


def run(graph: Graph, device: Any, inputs: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    bound = compile(graph, device, **options).bind({})
    bound.run(inputs).wait()
    return {name: device.download(buffer) for name, buffer in bound.outputs.items()}


def doubled() -> Graph:
    b = Builder()
    return b.build(y=ops.mul(b.input("x", X), 2.0))


def test_a_run() -> None:
    device = Toy("mul")
    np.testing.assert_array_equal(run(doubled(), device, {"x": ONES})["y"], 2 * ONES)
    bound = compile(doubled(), device).bind({})
    bound.run({"x": Held("toy:0", ONES)})
    np.testing.assert_array_equal(device.download(bound.outputs["y"]), 2 * ONES)


def test_inputs_that_stay_the_same_may_be_bound() -> None:
    device = Toy("add")
    b = Builder()
    bound = compile(b.build(ops.add(b.input("x", X), b.input("y", X))), device).bind({"y": Held("toy:0", ONES)})
    bound.run({"x": ONES})
    np.testing.assert_array_equal(device.download(bound.outputs["out0"]), 2 * ONES)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({}, GraphError, "input 'x' is missing"),
        ({"x": ONES.astype(np.float64)}, GraphError, "input 'x' is float64, the graph wants float32"),
        ({"x": ONES[0]}, GraphError, r"input 'x' has shape \[4\], the graph wants float32\[n, 4\]"),
        ({"x": [1.0]}, GraphError, "inputs are numpy arrays or buffers of toy:0, not list"),
        ({"x": 1.0}, GraphError, "inputs are numpy arrays or buffers of toy:0, not float"),
        ({"x": np.ones((9, 4), np.float32)}, GraphError, "n is 9, its maximum is 8"),
        ({"x": np.ones((6, 4), np.float32)}, DeviceError, "n is 6, but the graph was compiled for at most 5"),
    ],
)
def test_inputs_that_do_not_fit(inputs: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(doubled(), Toy("mul"), inputs, bounds={"n": 5, "other": 1})


def test_sizes_that_the_caller_knows() -> None:
    b = Builder()
    graph = b.build(ops.neg(b.input("x", TensorType(float32, (N + sym("m"),)))))
    bound = compile(graph, Toy("neg")).bind({})
    with pytest.raises(GraphError, match="needs a value for"):
        bound.run({"x": np.ones(3, np.float32)})
    bound.run({"x": np.ones(3, np.float32)}, {"n": 2, "m": 1})
    with pytest.raises(GraphError, match=r"size .* should be 4, but is 3"):
        bound.run({"x": np.ones(3, np.float32)}, {"n": 3, "m": 1})


def test_sizes_are_checked_before_any_kernel_runs() -> None:
    device = Toy()
    ran = []

    @device.kernels.register(ops.add)
    def add(a: Any, b: Any) -> Any:
        ran.append("add")
        return a

    b = Builder()
    graph = b.build(ops.add(b.input("x", X), b.input("y", TensorType(float32, (sym("m"), 4)))))
    with pytest.raises(GraphError, match="do not broadcast: n is 2, m is 1"):
        run(graph, device, {"x": ONES, "y": ONES[:1]})
    assert ran == []


def test_a_failing_kernel_is_a_device_error_that_names_it() -> None:
    device = Toy()

    @device.kernels.register(ops.mul, name="broken")
    def mul(a: Any, b: Any) -> Any:
        raise RuntimeError("out of cheese")

    with pytest.raises(
        DeviceError, match=r"toy:0: kernel 'broken' of mul failed to compute float32\[n, 4\]: out of cheese"
    ):
        run(doubled(), device, {"x": ONES})


def test_a_kernel_with_the_wrong_number_of_results_is_a_device_error() -> None:
    device = Toy()
    device.kernels.register(ops.topk, name="short")(lambda x, *, k: (x,))
    b = Builder()
    with pytest.raises(DeviceError, match="kernel 'short' of topk failed"):
        run(b.build(ops.topk(b.input("x", X), k=2)[0]), device, {"x": ONES})


def spy(device: Toy, op: Any, seen: list[Any], result: Any) -> None:
    """A kernel that notes its operands."""

    class Planner:
        def plan(self, node: Any, bounds: Any) -> Any:
            def call(*operands: Any, **attributes: Any) -> Any:
                seen.extend(operands)
                return result

            return call

    device.kernels.register(op, name="spy")(Planner())


def test_numbers_reach_elementwise_kernels_as_numbers() -> None:
    device, seen = Toy(), list[Any]()
    out = Held("toy:0", ONES)
    for op in (ops.add, ops.where, ops.lt):
        spy(device, op, seen, out)
    b = Builder()
    x, flag = b.input("x", X), b.input("flag", TensorType(bool_, (N, 1)))
    run(b.build(ops.add(x, 2.5)), device, {"x": ONES, "flag": ONES[:, :1] > 0})
    assert seen[1] == 2.5
    seen.clear()
    run(b.build(ops.where(flag, -1.0, x)), device, {"x": ONES, "flag": ONES[:, :1] > 0})
    numbers = [s for s in seen if isinstance(s, float)]
    assert numbers == [-1.0]


def test_scalar_constants_are_buffers_elsewhere() -> None:
    device, seen = Toy(), list[Any]()
    out = Held("toy:0", np.zeros(()))
    for op in (ops.add, ops.exp, ops.expand, ops.where):
        spy(device, op, seen, out)
    b = Builder()
    one, two, yes = b.constant(1.0, float32), b.constant(2.0, float32), b.constant(True, bool_)
    ops.exp(one)
    made = [ops.exp(one), ops.add(one, two), ops.expand(one, shape=(2, 2)), ops.where(yes, one, two)]
    bound = compile(b.build(*made, constant=two), device).bind({})
    bound.run({})
    assert all(isinstance(s, Held) and s.array.shape == () for s in seen)
    assert [float(s.array) for s in seen] == [1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0]
    assert float(device.download(bound.outputs["constant"])) == 2.0


def test_absent_operands_arrive_as_none_or_are_left_out() -> None:
    seen: list[Any] = []
    device = Toy()
    spy(device, ops.linear, seen, Held("toy:0", ONES))
    b = Builder()
    graph = b.build(ops.linear(b.input("x", X), b.parameter("w", WeightType((4, 4), "float32"))))
    bound = compile(graph, device).bind({"w": "weight"})
    bound.run({"x": ONES})
    assert seen[1:] == ["weight", None]
    device.kernels = KernelRegistry()
    device.kernels.register(ops.linear)(lambda x, weight: seen.append((x, weight)))
    bound = compile(graph, device).bind({"w": "weight"})
    bound.run({"x": ONES})
    assert seen[-1][1] == "weight"


def attention_graph() -> tuple[Graph, Value]:
    b = Builder()
    cache = b.state("cache", paged_kv(1, 4, 4, "float32"))
    q, bias = b.input("q", TensorType(float32, (N, 1, 4))), b.input("bias", TensorType(float32, (N, 1, sym("keys"))))
    start, lens = b.input("start", TensorType(int32, (2,))), b.input("lens", TensorType(int32, (1,)))
    table = b.input("table", TensorType(int32, (1, 2)))
    out, lse = ops.paged_attention(q, cache, start, lens, table, None, bias, scale=1.0)
    return b.build(out, lse), cache


def test_host_operands_come_as_arrays_and_optional_ones_in_place() -> None:
    device, got = Toy(), list[Any]()

    @device.kernels.register(ops.paged_attention, host=("seq_lens", "query_start"))
    def attention(
        q: Any, cache: Any, query_start: Any, seq_lens: Any, block_table: Any, bias: Any = None, *, scale: float
    ) -> Any:
        got.extend([query_start, seq_lens, block_table, bias])
        return q, q

    exe = compile(attention_graph()[0], device)
    bound = exe.bind(exe.allocate_state(StateSpace(2, 4)))
    inputs: dict[str, Any] = {"q": np.ones((1, 1, 4), np.float32), "bias": np.ones((1, 1, 3), np.float32)}
    inputs |= {"start": np.array([0, 1], np.int32), "lens": Held("toy:0", np.array([3], np.int32))}
    bound.run({**inputs, "table": np.zeros((1, 2), np.int32)})
    start, lens, table, bias = got
    assert isinstance(start, np.ndarray)
    assert isinstance(lens, np.ndarray)
    assert lens.tolist() == [3]
    assert isinstance(table, Held)
    assert device.open(bias).shape == (1, 1, 3)


def test_parameters_and_states_are_demanded() -> None:
    exe = compile(attention_graph()[0], REFERENCE)
    with pytest.raises(GraphError, match="no buffer for 'cache'"):
        exe.bind({})
    with pytest.raises(GraphError, match="no space is given for state 'cache'"):
        exe.allocate_state({"other": StateSpace(1, 1)})
    made = exe.allocate_state({"cache": StateSpace(3, 2)})["cache"]
    assert made.k.shape == (3, 2, 1, 4)


def packed(values: Any) -> WeightSource:
    pack = scheme("float32").pack
    assert pack is not None
    data = pack(values)
    return WeightSource("w", values.shape, (WeightPart("float32", len(values), lambda: data),))


def test_parameters_must_fit() -> None:
    b = Builder("net")
    x, w, bias = (
        b.input("x", X),
        b.parameter("w", WeightType((2, 4), "float32")),
        b.parameter("b", TensorType(float32, (2,))),
    )
    exe = compile(b.build(ops.linear(x, w, bias), ops.embedding(ops.argmax(x), w, dtype=float32)), REFERENCE)
    values = np.arange(8.0).reshape(2, 4)
    with pytest.raises(GraphError, match="graph 'net' has no parameter 'v'"):
        exe.prepare("v", np.ones(2))
    with pytest.raises(
        GraphError, match=r"parameter 'w' is weight<float32>\[2, 4\], its source is weight<float32>\[4, 2\]"
    ):
        exe.prepare("w", packed(values.reshape(4, 2)))
    with pytest.raises(
        GraphError, match=r"parameter 'w' is weight<float32>\[2, 4\], its source is an array of shape \[2, 4\]"
    ):
        exe.prepare("w", values)
    with pytest.raises(GraphError, match=r"parameter 'b' is float32\[2\], its source is an array of shape \[3\]"):
        exe.prepare("b", np.ones(3))
    bound = exe.bind({"w": exe.prepare("w", packed(values)), "b": exe.prepare("b", np.array([0.5, 1.5]))})
    bound.run({"x": ONES})
    np.testing.assert_array_equal(bound.outputs["out0"], [[6.5, 23.5], [6.5, 23.5]])
    assert bound.outputs["out0"].dtype == np.float32


def test_readers_of_a_parameter() -> None:
    readers: list[Any] = []

    class Device(ReferenceDevice):
        def prepare(self, source: WeightSource, uses: Any) -> Any:
            readers.append(list(uses))
            return super().prepare(source, uses)

    b = Builder()
    w = b.parameter("w", WeightType((4, 4), "float32"))
    x = ops.embedding(b.input("i", TensorType(int32, (N,))), w, dtype=float32)
    compile(b.build(ops.linear(ops.linear(x, w), w)), Device()).prepare("w", packed(np.ones((4, 4))))
    assert readers == [["embedding", "linear"]]


def test_outputs_stay_until_the_next_run_and_runs_do_not_mix() -> None:
    bound = compile(doubled(), REFERENCE).bind({})
    bound.run({"x": ONES})
    first = bound.outputs["y"]
    bound.run({"x": 3 * ONES})
    np.testing.assert_array_equal(first, 2 * ONES)
    np.testing.assert_array_equal(bound.outputs["y"], 6 * ONES)


def test_dead_values_are_forgotten_at_once() -> None:
    import weakref

    alive: list[Any] = []
    device = Toy()

    class Probe:
        pass

    def kernel(x: Any) -> Any:
        counts.append(sum(ref() is not None for ref in alive))
        made = Probe()
        alive.append(weakref.ref(made))
        return made

    counts: list[int] = []
    device.kernels.register(ops.neg)(kernel)
    b = Builder()
    x = b.input("x", X)
    for _ in range(6):
        x = ops.neg(x)
    compile(b.build(x), device).bind({}).run({"x": ONES})
    assert max(counts) == 1


def test_symbolic_attributes_are_numbers_for_kernels() -> None:
    b = Builder()
    x = b.input("x", X)
    out = run(
        b.build(ops.reshape(x, shape=(2 * N, 2)), ops.slice(x, axis=0, start=N - 1, stop=N)), REFERENCE, {"x": ONES}
    )
    assert out["out0"].shape == (4, 2)
    assert out["out1"].shape == (1, 4)


def positive(x: Tensor) -> Tensor:
    """The positive elements of a vector."""
    return x[x > 0]


def test_unbacked_sizes_reach_later_kernels() -> None:
    op: Op[..., Any] = Op(positive, Tolerance.SELECTION, 1)
    op.infer(_some)
    device = Toy("reshape", "add")
    device.kernels.register(op)(lambda x: Held("toy:0", x.array[x.array > 0]))
    b = Builder()
    few = op(b.input("x", TensorType(float32, (N,))))
    size = sym("few", unbacked=True)
    graph = b.build(ops.reshape(few, shape=(size, 1)), ops.add(few, b.input("y", TensorType(float32, (sym("m"),)))))
    x = np.array([1, -1, 3], np.float32)
    assert run(graph, device, {"x": x, "y": np.ones(2, np.float32)})["out0"].shape == (2, 1)
    with pytest.raises(GraphError, match="do not broadcast: few is 2, m is 1"):
        run(graph, device, {"x": x, "y": np.ones(1, np.float32)})


def _some(x: TensorType) -> TensorType:
    return TensorType(x.dtype, (sym("few", unbacked=True),))


def test_constants_are_uploaded_once_in_their_dtype() -> None:
    device = Toy("add")
    b = Builder()
    x = b.input("x", TensorType(float16, (2,)))
    bound = compile(b.build(ops.add(x, b.constant(np.array([0.1, 7e4]), float16))), device).bind({})
    uploads = device.uploads
    bound.run({"x": np.zeros(2, np.float16)})
    assert device.uploads == uploads + 1
    out = device.download(bound.outputs["out0"])
    assert out.dtype == np.float16
    assert out.tolist() == [np.float16(0.1), np.inf]
