"""Compilation: kernel, else decomposition, else fallback, else an error that says why; and nothing changes results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import GraphError, SettingsError, UnsupportedOp
from xinheng.core.hal import Choice, KernelExecutable, Numerics, ReferenceDevice, StateSpace
from xinheng.core.ir import Builder, Graph, Op, TensorType, Tolerance, WeightType, paged_kv, sym
from xinheng.core.ir.dtype import float16, float32, int32
from xinheng.core.ir.op import OPS, Tensor
from xinheng.core.ops import OPSET
from xinheng.core.receipt import Decomposed, Line

from .random_graphs import feeds, graphs, weights
from .toy import Held, Toy

N = sym("n")
X = TensorType(float32, (N, 4))
ONES = np.ones((2, 4), np.float32)
EXACT = ReferenceDevice("sim:exact")


def silu_graph() -> Graph:
    b = Builder()
    return b.build(y=ops.silu(ops.exp(b.input("x", X))))


def run(graph: Graph, device: Any, **options: Any) -> Any:
    bound = compile(graph, device, **options).bind({})
    bound.run({v.name: ONES for v in graph.inputs}).wait()
    return device.download(next(iter(bound.outputs.values())))


def lines(graph: Graph, device: Any, **options: Any) -> list[tuple[str, str, str, int]]:
    receipt = compile(graph, device, **options).receipt
    return [(line.op, line.kernel, line.device, line.count) for line in receipt.lines]


def test_a_kernel_comes_first() -> None:
    assert lines(silu_graph(), Toy("exp", "silu", "mul", "sigmoid")) == [
        ("exp", "toy_exp", "toy:0", 1),
        ("silu", "toy_silu", "toy:0", 1),
    ]


def test_then_the_decomposition() -> None:
    receipt = compile(silu_graph(), Toy("exp", "mul", "sigmoid"), fallback=EXACT).receipt
    assert [line.op for line in receipt.lines] == ["exp", "sigmoid", "mul"]
    assert receipt.decomposed == (Decomposed("silu", 1),)
    assert receipt.moved == 0
    assert receipt.summary() == "3 ops on toy:0; decomposed: silu x1"
    np.testing.assert_allclose(run(silu_graph(), Toy("exp", "mul", "sigmoid")), run(silu_graph(), EXACT), rtol=1e-6)


def test_then_the_fallback() -> None:
    device = Toy("exp", "mul")
    receipt = compile(silu_graph(), device, fallback=EXACT).receipt
    assert receipt.by_device() == {"toy:0": 2, "sim:exact": 1}
    assert receipt.moved == 1
    assert receipt.nodes == 3
    assert receipt.summary() == "2 ops on toy:0, 1 op on sim:exact (moved); decomposed: silu x1"
    assert Line("sigmoid", "reference", "sim:exact", 1, True, ()) in receipt.lines
    np.testing.assert_array_equal(
        run(silu_graph(), device, fallback=EXACT), run(silu_graph(), Toy("exp", "mul", "sigmoid"))
    )


def test_operands_cross_to_a_fallback_that_has_its_own_buffers() -> None:
    device, other = Toy("exp", "softmax"), Toy("where", "topk", "lt", spec="other:1")
    b = Builder()
    x = ops.exp(b.input("x", X))
    values, _ = ops.topk(ops.where(ops.lt(x, 0.5), 1.5, x), k=2)
    graph = b.build(ops.softmax(values))
    assert run(graph, device, fallback=other).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert other.uploads == 3  # x and two constants
    assert other.downloads == 1


def test_a_fallback_kernel_may_lack_optional_operands() -> None:
    def pick(x: Tensor, a: Tensor | None = None, b: Tensor | None = None) -> Tensor:
        """The sum of what is given."""
        return x if b is None else x + b

    op: Op[..., Any] = Op(pick, Tolerance.EXACT, 1)
    op.infer(_first)
    other = Toy(spec="other:1")
    other.kernels.register(op)(lambda x, b: Held("other:1", x.array + b.array))
    b = Builder()
    graph = b.build(op(b.input("x", X), None, b.input("y", X)))
    np.testing.assert_array_equal(run(graph, Toy(), fallback=other), 2 * ONES)


def _first(x: TensorType, *others: Any) -> TensorType:
    return x


def test_a_fallback_kernel_gets_its_host_operands_as_arrays() -> None:
    seen: list[Any] = []
    device, other = Toy("exp"), Toy(spec="other:1")

    @other.kernels.register(ops.index_select, host=("indices",))
    def index_select(x: Any, indices: Any, *, axis: int) -> Any:
        seen.append(indices)
        return Held("other:1", np.take(x.array, indices, axis=axis))

    b = Builder()
    graph = b.build(ops.index_select(ops.exp(b.input("x", X)), b.input("i", TensorType(int32, (3,)))))
    bound = compile(graph, device, fallback=other).bind({})
    bound.run({"x": ONES, "i": np.array([1, 0, 1], np.int32)})
    assert isinstance(seen[0], np.ndarray)
    assert device.download(bound.outputs["out0"]).shape == (3, 4)


def test_without_a_fallback_the_error_says_what_and_why() -> None:
    device = Toy("mul")
    device.kernels.register(ops.exp, name="half", dtypes=(float16,))(lambda x: x)
    device.kernels.register(ops.exp, name="picky", when=lambda node: "needs an even size")(lambda x: x)
    with pytest.raises(UnsupportedOp) as caught:
        compile(silu_graph(), device)
    assert str(caught.value) == (
        "toy:0 cannot run exp on float32[n, 4] (half: takes float16, not float32; picky: needs an even size); "
        "set runtime.fallback to cpu or reference"
    )
    with pytest.raises(UnsupportedOp, match=r"cannot run exp on float32\[n, 4\] \(it has no kernel for it\)"):
        compile(silu_graph(), Toy())
    with pytest.raises(UnsupportedOp, match=r"neither can other:1$"):
        compile(silu_graph(), Toy("mul", "sigmoid"), fallback=Toy("mul", spec="other:1"))


def test_what_reads_a_weight_goes_to_the_fallback_as_a_whole() -> None:
    b = Builder()
    graph = b.build(ops.linear(b.input("x", X), b.parameter("w", WeightType((2, 4), "float32"))))
    partly = compile(graph, Toy("matmul", "permute"), fallback=EXACT).receipt
    assert [(line.op, line.device) for line in partly.lines] == [("linear", "sim:exact")]
    wholly = compile(graph, Toy("matmul", "permute", "dequantize"), fallback=EXACT).receipt
    assert (wholly.moved, [entry.op for entry in wholly.decomposed]) == (0, ["linear"])
    with pytest.raises(UnsupportedOp, match=r"toy:0 cannot run dequantize .* set runtime\.fallback"):
        compile(graph, Toy("matmul", "permute"))


def test_an_op_moves_as_a_whole_where_its_decomposition_would_all_move() -> None:
    receipt = compile(silu_graph(), Toy("exp"), fallback=EXACT).receipt
    assert [(line.op, line.device) for line in receipt.lines] == [("exp", "toy:0"), ("silu", "sim:exact")]
    assert receipt.decomposed == ()
    forced = compile(silu_graph(), Toy("exp"), fallback=EXACT, **with_overrides(silu="decompose")).receipt
    assert [line.op for line in forced.lines] == ["exp", "sigmoid", "mul"]


def test_why_an_op_was_decomposed_is_in_the_receipt() -> None:
    device = Toy("exp", "mul", "sigmoid")
    device.kernels.register(ops.silu, name="half", dtypes=(float16,))(lambda x: x)
    b = Builder()
    x = ops.exp(b.input("x", X))
    exe = compile(b.build(ops.silu(x), ops.silu(ops.exp(x)), ops.gelu(x, approximate="none")), device, fallback=EXACT)
    assert exe.receipt.decomposed == (
        Decomposed("gelu", 1),
        Decomposed("silu", 2, (("half", "takes float16, not float32"),)),
    )
    assert exe.receipt.summary().endswith("decomposed: gelu x1, silu x2")


def test_refusals_of_better_kernels_are_in_the_receipt() -> None:
    device = Toy("exp", "silu")
    device.kernels.register(ops.silu, name="fast", priority=5, dtypes=(float16,))(lambda x: x)
    (line,) = [entry for entry in compile(silu_graph(), device).receipt.lines if entry.op == "silu"]
    assert line.kernel == "toy_silu"
    assert line.refused == (("fast", "takes float16, not float32"),)


def with_overrides(**overrides: str) -> dict[str, Any]:
    return {"numerics": Numerics(overrides=overrides)}


ALL = ("exp", "silu", "mul", "sigmoid")


def test_overrides() -> None:
    device = Toy(*ALL)
    device.kernels.register(ops.silu, name="slow", priority=-5)(lambda x: x)
    decomposed = compile(silu_graph(), device, **with_overrides(silu="decompose")).receipt
    assert decomposed.decomposed == (Decomposed("silu", 1, (("device", "the override asks for the decomposition"),)),)
    assert lines(silu_graph(), device, **with_overrides(silu="@slow"))[1] == ("silu", "slow", "toy:0", 1)
    assert lines(silu_graph(), device, **with_overrides(silu="reference"))[1] == ("silu", "reference", "reference", 1)
    assert lines(silu_graph(), device, **with_overrides(silu="device"))[1] == ("silu", "toy_silu", "toy:0", 1)
    for choice in ("decompose", "@toy_silu", "reference", "device"):
        out = run(silu_graph(), Toy(*ALL), **with_overrides(silu=choice))
        np.testing.assert_allclose(out, run(silu_graph(), EXACT), rtol=1e-6)


def test_a_refused_override_says_so_in_the_receipt() -> None:
    device = Toy(*ALL)
    receipt = compile(silu_graph(), device, **with_overrides(silu="reference")).receipt
    assert receipt.lines[1].refused == (("device", "the override asks for the reference"),)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"silo": "reference"}, "runtime.overrides: unknown op 'silo', did you mean 'silu'"),
        (
            {"silu": "refrence"},
            "runtime.overrides.silu: 'refrence' is not device, decompose, reference or @kernel-name",
        ),
        ({"exp": "decompose"}, "runtime.overrides.exp: a primitive op has no decomposition"),
        ({"silu": "@toy_sliu"}, "runtime.overrides.silu: toy:0 has no kernel 'toy_sliu', did you mean 'toy_silu'"),
        ({"silu": "@x"}, "runtime.overrides.silu: toy:0 has no kernel 'x'; it has toy_silu"),
        ({"tanh": "@x"}, "runtime.overrides.tanh: toy:0 has no kernel 'x'; it has none"),
    ],
)
def test_impossible_overrides(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        compile(silu_graph(), Toy(*ALL), **with_overrides(**overrides))


def test_overrides_that_the_device_cannot_honour_are_errors() -> None:
    with pytest.raises(UnsupportedOp, match=r"cannot run silu .* take 'device' out of runtime\.overrides"):
        compile(silu_graph(), Toy("exp", "mul", "sigmoid"), fallback=EXACT, **with_overrides(silu="device"))
    device = Toy(*ALL)
    device.kernels.register(ops.silu, name="half", dtypes=(float16,))(lambda x: x)
    with pytest.raises(UnsupportedOp, match=r"half: takes float16, not float32.*take '@half' out"):
        compile(silu_graph(), device, fallback=EXACT, **with_overrides(silu="@half"))


def test_a_malformed_graph_is_refused() -> None:
    from dataclasses import replace

    graph = silu_graph()
    with pytest.raises(GraphError, match="used before it is defined"):
        compile(replace(graph, nodes=graph.nodes[::-1]), EXACT)


def test_what_simplify_drops_is_not_called_decomposed() -> None:
    b = Builder()
    x = b.input("x", X)
    receipt = compile(b.build(ops.add(ops.silu(x), ops.silu(x))), EXACT).receipt
    assert receipt.decomposed == ()
    assert [(line.op, line.count) for line in receipt.lines] == [("silu", 1), ("add", 1)]


def test_ops_of_other_op_sets() -> None:
    def vendor_swish(x: Tensor, *, beta: float = 1.0) -> Tensor:
        """A fused op that a vendor brings."""
        return x / (1 + np.exp(-beta * x))

    op: Op[..., Any] = Op(vendor_swish, Tolerance.TRANSCENDENTAL, 1)
    op.infer(_scaled)
    op.decompose(_swish)
    assert "vendor_swish" not in OPSET
    assert "vendor_swish" not in OPS
    b = Builder()
    graph = b.build(op(b.input("x", X)))
    assert compile(graph, EXACT).receipt.decomposed == (Decomposed("vendor_swish", 1),)
    device = Toy("mul", "sigmoid")
    device.kernels.register(op)(lambda x: Held("toy:0", x.array))
    assert lines(graph, device) == [("vendor_swish", "<lambda>", "toy:0", 1)]
    assert lines(graph, device, **with_overrides(vendor_swish="decompose"))[0][0] == "mul"


def _scaled(x: TensorType, *, beta: float) -> TensorType:
    return x


def _swish(x: Tensor, *, beta: float) -> Tensor:
    return ops.mul(x, ops.sigmoid(ops.mul(x, beta)))


def unsimplified(graph: Graph, device: ReferenceDevice) -> KernelExecutable:
    """The graph as it is, without any pass."""
    chosen = [device.kernels.select(node)[0] for node in graph.nodes]
    return KernelExecutable(graph, device, [Choice(k, device) for k in chosen if k is not None], {})


@settings(max_examples=60, deadline=None)
@given(graphs(float32), graphs(float16))
def test_passes_do_not_change_results(single: Graph, half: Graph) -> None:
    for graph in (single, half):
        inputs = {v.name: feeds(graph, 3)[v.name].astype(v.dtype.numpy) for v in graph.inputs}
        buffers = {name: value.astype(np.float32) for name, value in weights(graph).items()}
        plain, compiled = unsimplified(graph, EXACT).bind(buffers), compile(graph, EXACT).bind(buffers)
        plain.run(inputs)
        compiled.run(inputs)
        for name, want in plain.outputs.items():
            np.testing.assert_array_equal(np.asarray(compiled.outputs[name]), np.asarray(want))


def test_state_survives_between_runs() -> None:
    b = Builder()
    cache = b.state("cache", paged_kv(1, 2, 2, "float32"))
    k, slots = b.input("k", TensorType(float32, (N, 1, 2))), b.input("slots", TensorType(int32, (N,)))
    written = ops.write_cache(cache, k, k, slots)
    start, lens = b.input("start", TensorType(int32, (2,))), b.input("lens", TensorType(int32, (1,)))
    out, _ = ops.paged_attention(k, written, start, lens, b.input("table", TensorType(int32, (1, 2))), scale=1.0)
    exe = compile(b.build(out), EXACT)
    bound = exe.bind(exe.allocate_state(StateSpace(2, 2)))
    keys = np.random.default_rng(0).normal(size=(3, 1, 2)).astype(np.float32)
    common = {"start": np.array([0, 1], np.int32), "table": np.array([[1, 0]], np.int32)}
    for i, slot in enumerate((2, 3, 0)):
        inputs = {"k": keys[i : i + 1], "slots": np.array([slot], np.int32), "lens": np.array([i + 1], np.int32)}
        bound.run({**common, **inputs})
        logits = keys[: i + 1, 0] @ keys[i, 0]
        p = np.exp(logits - logits.max())
        np.testing.assert_allclose(bound.outputs["out0"][0, 0], p @ keys[: i + 1, 0] / p.sum(), rtol=1e-6)
