"""Native programs: the results of kernels run one by one, in memory planned once, whatever the sizes of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.backends.cpu.device import CPUDevice
from xinheng.backends.cpu.executable import CPUExecutable
from xinheng.backends.cpu.program import Command, PythonStep
from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import DeviceError, GraphError
from xinheng.core.hal import DeviceOptions, KernelExecutable, Numerics, StateSpace, WeightPart, WeightSource
from xinheng.core.ir import Builder, TensorType, WeightType, paged_kv, sym
from xinheng.core.ir.dtype import float32, int32
from xinheng.core.schemes import scheme

RNG = np.random.default_rng(3)
BOUNDS = {"tokens": 24, "seqs": 4, "blocks": 8, "rows": 24}


@pytest.fixture(params=["strict", "fast"])
def cpu(request: pytest.FixtureRequest) -> CPUDevice:
    opened = CPUDevice(DeviceOptions(numerics=Numerics(request.param)))
    if opened.notes():
        pytest.skip("no C++ compiler on this machine: there are no native programs")
    return opened


def weight(name: str, rows: int, columns: int, coding: str = "q4_0") -> WeightSource:
    pack = scheme(coding).pack
    assert pack is not None
    packed = np.ascontiguousarray(pack(np.random.default_rng(rows * columns).normal(0, 0.1, (rows, columns))))
    return WeightSource(name, (rows, columns), (WeightPart(coding, rows, lambda: packed),))


def layer() -> tuple[Any, dict[str, Any]]:
    """A decoder layer in small, with the sources of its parameters."""
    b = Builder("layer")
    tokens, seqs, rows = (sym(name) for name in ("tokens", "seqs", "rows"))
    x = b.input("x", TensorType(float32, (tokens, 64)))
    positions = b.input("positions", TensorType(int32, (tokens,)))
    start = b.input("query_start", TensorType(int32, (seqs + 1,)))
    lengths = b.input("seq_lens", TensorType(int32, (seqs,)))
    table = b.input("table", TensorType(int32, (seqs, sym("blocks"))))
    slots = b.input("slots", TensorType(int32, (tokens,)))
    picked = b.input("picked", TensorType(int32, (rows,)))
    cache = b.state("cache", paged_kv(2, 16, 16, "float32"))
    sources: dict[str, Any] = {"norm": RNG.normal(1, 0.1, 64).astype(np.float32)}

    def matrix(name: str, rows: int, columns: int) -> Any:
        sources[name] = weight(name, rows, columns)
        return b.parameter(name, WeightType((rows, columns), "q4_0"))

    norm = b.parameter("norm", TensorType(float32, (64,)))
    angles = ops.mul(
        ops.reshape(ops.cast(positions, dtype=float32), shape=(tokens, 1)),
        b.constant(np.float32(0.1) * np.arange(1, 9, dtype=np.float32), float32),
    )
    cos, sin = ops.cos(angles), ops.sin(angles)
    y = ops.rms_norm(x, norm, eps=1e-5)
    q = ops.reshape(ops.linear(y, matrix("q", 64, 64)), shape=(tokens, 4, 16))
    k = ops.reshape(ops.linear(y, matrix("k", 32, 64)), shape=(tokens, 2, 16))
    v = ops.reshape(ops.linear(y, matrix("v", 32, 64)), shape=(tokens, 2, 16))
    q, k = ops.rotary_embedding(q, cos, sin), ops.rotary_embedding(k, cos, sin)
    written = ops.write_cache(cache, k, v, slots)
    out, _ = ops.paged_attention(q, written, start, lengths, table, scale=0.25)
    y = ops.add(x, ops.linear(ops.reshape(out, shape=(tokens, 64)), matrix("o", 64, 64)))
    z = ops.rms_norm(y, norm, eps=1e-5)
    z = ops.silu_and_mul(ops.linear(z, matrix("gate", 96, 64)), ops.linear(z, matrix("up", 96, 64)))
    y = ops.add(y, ops.linear(z, matrix("down", 64, 96)))
    return b.build(y=ops.index_select(y, picked)), sources


def feeds(counts: tuple[int, ...], lengths: tuple[int, ...]) -> dict[str, Any]:
    tokens = sum(counts)
    table = np.arange(len(counts) * 2, dtype=np.int32).reshape(len(counts), 2)
    where = [(s, lengths[s] - n + i) for s, n in enumerate(counts) for i in range(n)]
    return {
        "x": np.random.default_rng(tokens).normal(size=(tokens, 64)).astype(np.float32),
        "positions": np.array([p for _, p in where], np.int32),
        "query_start": np.cumsum([0, *counts]).astype(np.int32),
        "seq_lens": np.array(lengths, np.int32),
        "table": table,
        "slots": np.array([table[s, p // 16] * 16 + p % 16 for s, p in where], np.int32),
        "picked": np.array([tokens - 1, 0], np.int32),
    }


def bound(exe: Any, sources: dict[str, Any]) -> Any:
    buffers = {name: exe.prepare(name, source) for name, source in sources.items()}
    return exe.bind({**buffers, **exe.allocate_state(StateSpace(8, 16))})


RUNS = [((3, 5), (3, 5)), ((1, 1), (4, 6)), ((4,), (4,)), ((12, 9), (12, 21)), ((1, 1), (13, 22))]


def test_a_layer_is_one_native_call_with_the_bits_of_its_kernels(cpu: CPUDevice) -> None:
    graph, sources = layer()
    exe = compile(graph, cpu, bounds=BOUNDS)
    assert isinstance(exe, CPUExecutable)
    assert exe.program is not None
    assert all(isinstance(step, Command) for step in exe.program.steps)
    program = bound(exe, sources)
    single = compile(graph, cpu)  # without bounds there is no plan
    assert getattr(single, "program", None) is None
    plain = bound(single, sources)
    for counts, lengths in RUNS:
        given = feeds(counts, lengths)
        program.run(given).wait()
        plain.run(given).wait()
        np.testing.assert_array_equal(cpu.download(program.outputs["y"]), cpu.download(plain.outputs["y"]))


def test_products_of_the_same_activations_share_a_command() -> None:
    cpu = CPUDevice(DeviceOptions(numerics=Numerics("fast")))
    if cpu.notes():
        pytest.skip("no C++ compiler on this machine: there are no native programs")
    graph, _ = layer()
    exe = compile(graph, cpu, bounds=BOUNDS)
    assert isinstance(exe, CPUExecutable)
    assert exe.program is not None
    products = [s for s in exe.program.steps if isinstance(s, Command) and s.node.op is ops.linear]
    assert len(products) == 4  # q with k and v, o, gate with up, down
    assert {line.kernel for line in exe.receipt.lines if line.op == "linear"} == {"native_linear_int8"}


def test_kernels_in_python_run_between_native_calls(cpu: CPUDevice) -> None:
    b = Builder("mixed")
    x = b.input("x", TensorType(float32, (sym("tokens"), 32)))
    y = ops.add(x, x)
    y = ops.cumsum(y, axis=1)  # no native kernel
    graph = b.build(y=ops.mul(y, y), z=ops.reshape(y, shape=(sym("tokens") * 32,)))
    exe = compile(graph, cpu, bounds=BOUNDS)
    assert isinstance(exe, CPUExecutable)
    assert exe.program is not None
    assert [s.node.op.name for s in exe.program.steps if isinstance(s, PythonStep)] == ["cumsum"]
    made = exe.bind({})
    for count in (5, 1, 24):
        array = RNG.normal(size=(count, 32)).astype(np.float32)
        made.run({"x": array}).wait()
        total = np.cumsum(2 * array, 1, dtype=np.float32)
        np.testing.assert_allclose(cpu.download(made.outputs["z"]), total.reshape(-1), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(cpu.download(made.outputs["y"]), total * total, rtol=1e-5, atol=1e-5)


def test_a_view_that_a_kernel_in_python_makes_outlives_its_operand(cpu: CPUDevice) -> None:
    b = Builder("view")
    tokens = sym("tokens")
    x = b.input("x", TensorType(float32, (tokens, 8)))
    y = ops.reshape(ops.add(x, x), shape=(tokens, 1, 2, 1, 4))
    y = ops.permute(y, axes=(1, 0, 2, 4, 3))  # more axes than a command has, and a view for torch
    later = ops.reshape(ops.mul(x, x), shape=(1, tokens, 2, 4, 1))  # where the sum was
    exe = compile(b.build(y=ops.sub(y, later)), cpu, bounds=BOUNDS)
    assert isinstance(exe, CPUExecutable)
    assert exe.program is not None
    assert [s.node.op.name for s in exe.program.steps if isinstance(s, PythonStep)] == ["permute"]
    made, array = exe.bind({}), RNG.normal(size=(3, 8)).astype(np.float32)
    made.run({"x": array}).wait()
    np.testing.assert_array_equal(cpu.download(made.outputs["y"]).reshape(3, 8), 2 * array - array * array)


def test_products_that_a_command_cannot_share_are_computed_all_the_same(cpu: CPUDevice) -> None:
    b = Builder("products")
    x = b.input("x", TensorType(float32, (sym("tokens"), 64)))
    many = b.parameter("many", WeightType((40, 64), "+".join(["q4_0:4", "q8_0:4"] * 5)))
    first, last = (b.parameter(name, WeightType((5, 64), "q4_0")) for name in ("first", "last"))
    y = ops.linear(x, first)
    bias = ops.sum(y, axis=0)  # not there yet when `first` is multiplied
    graph = b.build(y=y, z=ops.linear(x, last, bias), many=ops.linear(x, many))
    exe = compile(graph, cpu, bounds=BOUNDS)
    sources = {"first": weight("first", 5, 64), "last": weight("last", 5, 64)}
    parts = [weight(f"part {i}", 4, 64, ("q4_0", "q8_0")[i % 2]) for i in range(10)]
    sources["many"] = WeightSource.concatenate("many", parts)
    plain = compile(graph, cpu)
    given = {"x": RNG.normal(size=(3, 64)).astype(np.float32)}
    results = []
    for each in (exe, plain):
        made = each.bind({name: each.prepare(name, source) for name, source in sources.items()})
        for _ in range(2):
            made.run(given).wait()
        results.append({name: cpu.download(value) for name, value in made.outputs.items()})
    for name, value in results[1].items():
        np.testing.assert_array_equal(results[0][name], value)
    assert np.any(results[0]["z"])


def test_runs_of_rows_of_one_scheme_are_one_weight(cpu: CPUDevice) -> None:
    b = Builder("runs")
    x = b.input("x", TensorType(float32, (sym("tokens"), 64)))
    exe = compile(b.build(y=ops.linear(x, b.parameter("w", WeightType((8, 64), "q4_0")))), cpu, bounds=BOUNDS)
    source = WeightSource.concatenate("w", [weight("high", 5, 64), weight("low", 3, 64)])
    made, given = exe.bind({"w": exe.prepare("w", source)}), RNG.normal(size=(3, 64)).astype(np.float32)
    made.run({"x": given}).wait()
    np.testing.assert_allclose(cpu.download(made.outputs["y"]), given @ source.unpack().T, atol=0.05)


def test_memory_holds_a_size_that_is_largest_below_its_bound(cpu: CPUDevice) -> None:
    b = Builder("remainder")
    tokens = sym("tokens")
    x = b.input("x", TensorType(float32, (tokens, 64)))
    rest = ops.slice(x, axis=0, start=0, stop=tokens % 4)  # no rows at all where there are as many as can be
    y = ops.sub(ops.add(rest, rest), ops.mul(rest, rest))
    made = compile(b.build(y=y), cpu, bounds=BOUNDS).bind({})
    array = RNG.normal(size=(23, 64)).astype(np.float32)
    made.run({"x": array}).wait()
    expected = 2 * array[:3] - array[:3] * array[:3]
    np.testing.assert_array_equal(cpu.download(made.outputs["y"]), expected)


def test_memory_is_shared_by_results_that_do_not_meet(cpu: CPUDevice) -> None:
    b = Builder("chain")
    x = b.input("x", TensorType(float32, (sym("tokens"), 64)))
    for _ in range(20):
        x = ops.add(x, x)
    exe = compile(b.build(y=x), cpu, bounds=BOUNDS)
    assert isinstance(exe, CPUExecutable)
    assert exe.program is not None
    assert exe.program.arena == 2 * 24 * 64 * 4


def test_errors_name_the_op(cpu: CPUDevice) -> None:
    b = Builder("rows")
    x = b.input("x", TensorType(float32, (sym("tokens"), 8)))
    ids = b.input("ids", TensorType(int32, (sym("rows"),)))
    made = compile(b.build(y=ops.index_select(ops.add(x, x), ids)), cpu, bounds=BOUNDS).bind({})
    array = np.ones((3, 8), np.float32)
    with pytest.raises(DeviceError, match=r"index_select failed to compute .*: position 1 of its indices"):
        made.run({"x": array, "ids": np.array([0, 3], np.int32)})
    with pytest.raises(DeviceError, match="tokens is 25, but the graph was compiled for at most 24"):
        made.run({"x": np.ones((25, 8), np.float32), "ids": np.array([0], np.int32)})
    with pytest.raises(GraphError, match="ids"):
        made.run({"x": array, "ids": np.array([0], np.int64)})


def test_inputs_may_be_strided_arrays_and_buffers(cpu: CPUDevice) -> None:
    b = Builder("inputs")
    x = b.input("x", TensorType(float32, (sym("tokens"), 8)))
    exe = compile(b.build(y=ops.add(x, x)), cpu, bounds=BOUNDS)
    assert isinstance(exe, KernelExecutable)
    made, wide = exe.bind({}), RNG.normal(size=(6, 16)).astype(np.float32)
    for given in (wide[:, ::2], cpu.upload(wide[:, ::2], float32), cpu.upload(wide, float32)[:, ::2]):
        made.run({"x": given}).wait()
        np.testing.assert_array_equal(cpu.download(made.outputs["y"]), 2 * wide[:, ::2])


def test_a_weight_that_is_read_as_stored_too_is_not_tiled() -> None:
    cpu = CPUDevice(DeviceOptions(numerics=Numerics("fast")))
    if cpu.notes():
        pytest.skip("no C++ compiler on this machine: there are no tiles")
    b = Builder("readers")
    x, w, alone = (
        b.input("x", TensorType(float32, (3, 64))),
        *(b.parameter(name, WeightType((5, 64), "q4_0")) for name in ("w", "alone")),
    )
    graph = b.build(y=ops.linear(x, w), values=ops.dequantize(w, dtype=float32), other=ops.linear(x, alone))
    exe = compile(graph, cpu)
    assert [choice.kernel.name for _, choice, _ in exe.steps] == [  # type: ignore[attr-defined]
        "native_linear",
        "native_dequantize",
        "native_linear_int8",
    ]
    made = exe.bind({name: exe.prepare(name, weight(name, 5, 64)) for name in ("w", "alone")})
    given = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    made.run({"x": given}).wait()
    y, values, other = (cpu.download(made.outputs[name]) for name in ("y", "values", "other"))
    np.testing.assert_allclose(y, given @ values.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(other, y, atol=0.05)


def test_results_that_nobody_reads_and_errors_of_kernels(cpu: CPUDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder("dead")
    x = b.input("x", TensorType(float32, (3, 8)))
    _, indices = ops.topk(ops.neg(x), k=2)
    exe = compile(b.build(indices=indices), cpu)
    assert isinstance(exe, CPUExecutable)
    assert exe.program is not None
    made = exe.bind({})
    given = np.random.default_rng(2).normal(size=(3, 8)).astype(np.float32)
    made.run({"x": given}).wait()
    np.testing.assert_array_equal(cpu.download(made.outputs["indices"]), np.argsort(given, -1)[:, :2])

    def failing(*_: Any) -> None:
        raise ValueError("out of luck")

    monkeypatch.setattr(exe, "steps", [(node, choice, failing) for node, choice, _ in exe.steps])
    with pytest.raises(DeviceError, match=r"kernel 'torch_topk' of topk failed to compute .*: out of luck"):
        exe.bind({}).run({"x": given})


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("picked", [0, 8], r"index_select .* position 1 of"),
        ("picked", [-1, 0], r"index_select .* position 0 of"),
        ("slots", [0, 1, 2, 3, 4, 5, 6, 128], r"write_cache .* position 7 of"),
        ("table", [[0, 1], [8, 3]], r"paged_attention .* position 1 of"),
        ("table", [[-1, 1], [2, 3]], r"paged_attention .* position 0 of"),
        ("query_start", [0, 5, 3], r"paged_attention .* position 1 of"),
        ("query_start", [0, 3, 9], r"paged_attention .* position 1 of"),
        ("query_start", [-1, 3, 8], r"paged_attention .* position 0 of"),
        ("seq_lens", [3, 33], r"paged_attention .* position 1 of"),
        ("seq_lens", [-3, 5], r"paged_attention .* position 0 of"),
    ],
)
def test_what_is_out_of_range_is_an_error_that_names_the_op_and_the_next_run_works(
    cpu: CPUDevice, name: str, values: Any, told: str
) -> None:
    graph, sources = layer()
    made, given = bound(compile(graph, cpu, bounds=BOUNDS), sources), feeds((3, 5), (3, 5))
    made.run(given).wait()
    before = cpu.download(made.outputs["y"]).copy()
    with pytest.raises(DeviceError, match=rf"cpu:0: {told} its indices, slots or sequences is out of range"):
        made.run({**given, name: np.array(values, np.int32)})
    made.run(given).wait()
    np.testing.assert_array_equal(cpu.download(made.outputs["y"]), before)
