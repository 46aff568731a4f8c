"""Whoever breaks a contract gets an error that names it, never a wrong number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xinheng.backends.sim.cache_layouts import Contiguous
from xinheng.backends.sim.device import SimDevice
from xinheng.backends.sim.kernels import PlannedKernel, sim_kernels
from xinheng.backends.sim.profiles import PROFILES
from xinheng.backends.sim.recording_device import RecordingDevice
from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import DeviceError, GraphError, SettingsError, UnsupportedOp
from xinheng.core.hal import Device, KernelRegistry, Numerics, ReferenceDevice, StateSpace, WeightPart, WeightSource
from xinheng.core.ir import Builder, TensorType, paged_kv, sym
from xinheng.core.ir.dtype import bfloat16, float32, float64, int32, int64, uint32
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings
from xinheng.engine.runner import cache_shape

from ...engine import tiny
from ...engine.tiny import open_llm
from .attention_graph import BOUNDS, SPACE, answer, bound, built, graph, open_device, step

WORDS = [word for word in PROFILES if word != "exact"]


# ----------------------------------------------------------------------------------------------- state on two devices
@pytest.mark.parametrize("word", WORDS)
def test_a_state_of_another_device_is_refused(word: str) -> None:
    device, other = open_device(word), open_device("heads-first-cache")
    state = built(other).allocate_state(SPACE)
    with pytest.raises(DeviceError, match=f"sim:{word} got cache of write_cache as a state of sim:heads-first-cache"):
        built(device).bind(state).run(step(3)).wait()


def test_a_state_of_no_device_is_refused() -> None:
    device = open_device("nz-cache")
    state = built(ReferenceDevice()).allocate_state(SPACE)
    with pytest.raises(DeviceError, match="KVPages, which is no buffer of it"):
        built(device).bind(state).run(step(3))


def test_one_op_of_a_state_cannot_move() -> None:
    numerics = Numerics(overrides={"write_cache": "reference"})
    with pytest.raises(UnsupportedOp, match="state"):
        compile(graph(), open_device("nz-cache"), bounds=BOUNDS, numerics=numerics)


def test_a_buffer_of_another_device_is_refused() -> None:
    device, other = open_device("nz-cache"), open_device("heads-first-cache")
    inputs = step(3)
    inputs["q"] = other.upload(inputs["q"], float32)
    with pytest.raises(DeviceError, match="a tensor of sim:heads-first-cache was given"):
        bound(device).run(inputs)


# --------------------------------------------------------------------------------------------------------- host lists
@pytest.mark.parametrize("word", ["host-lengths", "graph-capture"])
def test_a_host_list_as_a_tensor_is_refused(word: str) -> None:
    device, inputs = open_device(word), step(5, 3)
    want = answer(bound(device), device, inputs)
    lengths = inputs["seq_lens"]
    inputs["seq_lens"] = device.upload(lengths, int32)
    layer = bound(device)
    with pytest.raises(DeviceError, match=f"sim:{word} wants a host list and got a buffer; give a numpy array"):
        layer.run(inputs)
    layer.run(inputs, host={"seq_lens": lengths}).wait()
    np.testing.assert_array_equal(device.download(layer.outputs["out"]), want)


def test_a_kernel_refuses_a_tensor_for_a_host_list() -> None:
    device = open_device("host-lengths")
    (node,) = [n for n in built(device).graph.nodes if n.op.name == "paged_attention"]
    kernel, _ = device.select(node)
    assert kernel is not None
    inputs = {name: device.upload(a, float32 if a.dtype == np.float32 else int32) for name, a in step(2).items()}
    state = built(device).allocate_state(SPACE)["cache"]
    operands = [inputs["q"], state, *(inputs[name] for name in ("query_start", "seq_lens", "block_table")), None, None]
    with pytest.raises(DeviceError, match="wants query_start of paged_attention as a host list, not as a SimTensor"):
        kernel.function.plan(node, {})(*operands, scale=0.5)


def test_a_host_list_computed_by_the_graph_is_refused() -> None:
    b = Builder("computed")
    seqs = sym("seqs")
    q = b.input("q", TensorType(float32, (sym("tokens"), 1, 8)))
    lengths = ops.add(b.input("before", TensorType(int32, (seqs,))), 1)
    start = b.input("query_start", TensorType(int32, (seqs + 1,)))
    table = b.input("block_table", TensorType(int32, (seqs, 1)))
    out, _ = ops.paged_attention(q, b.state("cache", paged_kv(1, 8, 8, "float32")), start, lengths, table, scale=1.0)
    with pytest.raises(UnsupportedOp, match="wants 'seq_lens' on the host, but it is a result of the graph"):
        compile(b.build(out), open_device("host-lengths"))


# ------------------------------------------------------------------------------------------------------------ buckets
def test_a_shape_beyond_its_largest_bucket_is_refused() -> None:
    device = open_device("static-buckets")
    layer = bound(device)
    layer.run(step(12)).wait()
    with pytest.raises(DeviceError, match=r"tokens is 13, its largest bucket is 12; compile graph 'layer' with"):
        layer.run(step(13))
    with pytest.raises(DeviceError, match="seqs is 5, its largest bucket is 4"):
        layer.run(step(1, 1, 1, 1, 1))


def test_a_size_without_a_bound_is_refused() -> None:
    with pytest.raises(DeviceError, match="size 'blocks' of graph 'layer' has no largest value"):
        compile(graph(), open_device("static-buckets"), bounds={"tokens": 4, "seqs": 2})


def test_free_sizes_are_refused_by_the_device_itself() -> None:
    with pytest.raises(DeviceError, match="takes fixed sizes only, graph 'layer' has blocks, seqs, tokens"):
        open_device("static-buckets").compile(graph(), (), {})


# -------------------------------------------------------------------------------------------------- reading too early
def test_outputs_are_not_there_before_the_event() -> None:
    device = open_device("async")
    layer, inputs = bound(device), step(5, 3)
    event = layer.run(inputs)
    out = layer.outputs["out"]
    copy = device.copy_async(out)
    for read in (lambda: copy.array, lambda: out.array):
        with pytest.raises(DeviceError, match="read before the event of the run that computes it"):
            read()
    event.wait()
    want = answer(bound(open_device("exact")), ReferenceDevice(), step(5, 3))
    np.testing.assert_array_equal(copy.array, want)
    np.testing.assert_array_equal(copy.wait(), want)


@pytest.mark.parametrize("word", WORDS)
def test_a_buffer_is_no_array(word: str) -> None:
    device = open_device(word)
    layer = bound(device)
    layer.run(step(2))
    with pytest.raises(DeviceError, match="read it by download"):
        np.asarray(layer.outputs["out"])


@pytest.mark.parametrize("word", WORDS)
def test_the_host_may_reuse_its_arrays_at_once(word: str) -> None:
    device, inputs = open_device(word), step(5, 3)
    want = answer(bound(device), device, step(5, 3))
    layer = bound(device)
    layer.run(inputs)
    for array in inputs.values():
        array[...] = 0
    np.testing.assert_array_equal(device.download(layer.outputs["out"]), want)


def test_a_failure_is_told_by_everything_behind_it_and_ends_there() -> None:
    device = open_device("async")
    layer, good, bad = bound(device), step(5, 3), step(5, 3)
    bad["slots"] = bad["slots"] + 1000
    first = layer.run(bad)
    second = layer.run(good)
    out = layer.outputs["out"]
    for told in (first.wait, second.wait, first.wait, lambda: device.download(out), device.copy_async(out).wait):
        with pytest.raises(DeviceError, match="sim:async: write_cache failed: index"):
            told()
    want = answer(bound(open_device("exact")), ReferenceDevice(), good)
    np.testing.assert_array_equal(answer(layer, device, good), want)


@pytest.mark.parametrize("word", WORDS)
def test_reading_a_freed_block_gives_no_number(word: str) -> None:
    device = open_device(word)
    inputs = step(5, 3)
    inputs["block_table"][1] = -1
    out = answer(bound(device), device, inputs)
    assert np.isfinite(out[:5]).all()
    assert np.isnan(out[5:]).all()


def test_an_output_of_an_earlier_replay_is_refused() -> None:
    device = open_device("graph-capture")
    layer = bound(device)
    layer.run(step(5, 3)).wait()
    old = layer.outputs["out"]
    kept = device.download(old)
    layer.run(step(5, 3, seed=1)).wait()
    with pytest.raises(DeviceError, match="an output of run 1 is read after run 2 has overwritten it"):
        device.download(old)
    assert not np.array_equal(device.download(layer.outputs["out"]), kept)


# ------------------------------------------------------------------------------------------------------------ records
def test_host_lists_must_be_updated_before_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("graph-capture")
    layer = bound(device)
    layer.run(step(5, 3)).wait()
    monkeypatch.setattr(PlannedKernel, "update", lambda *_: None)
    with pytest.raises(DeviceError, match="paged_attention is replayed with the query_start, seq_lens of"):
        layer.run(step(4, 4))


def test_a_replay_takes_new_lists_and_inputs() -> None:
    device, exact = open_device("graph-capture"), open_device("exact")
    layer, reference = bound(device), bound(exact)
    for seed, lengths in enumerate([(5, 3), (4, 4), (2, 6), (5, 3)]):
        inputs = step(*lengths, seed=seed)
        np.testing.assert_array_equal(answer(layer, device, inputs), answer(reference, exact, inputs))
    assert layer.recorded == 1  # type: ignore[attr-defined]


def test_a_wrong_dtype_is_refused_on_replay_too() -> None:
    layer = bound(open_device("graph-capture"))
    layer.run(step(5, 3))
    with pytest.raises(GraphError, match="input 'q' is float64, the graph wants float32"):
        layer.run(step(5, 3) | {"q": np.zeros((8, 2, 8))})


def test_what_cannot_be_recorded_is_refused() -> None:
    device = open_device("graph-capture")
    assert isinstance(device, RecordingDevice)
    device.record = []
    with pytest.raises(DeviceError, match="an upload cannot be part of a recorded run"):
        device.upload(np.zeros(3, np.float32), float32)
    device.record = None
    device.kernels = KernelRegistry(sim_kernels(device, {}))
    device.kernels.register(ops.write_cache, name="plain")(lambda cache, k, v, slots: cache)
    with pytest.raises(DeviceError, match=r"cannot record write_cache \(plain\), which computes behind its back"):
        built(device)


# ------------------------------------------------------------------------------------------------------------- dtypes
@pytest.mark.parametrize("kind", [int64, uint32, float64])
def test_wide_tensors_are_refused_by_name(kind: Any) -> None:
    device = open_device("int32-only")
    with pytest.raises(DeviceError, match=f"sim:int32-only has no {kind} tensors; use a dtype of at most 32 bits"):
        device.upload(np.zeros(3), kind)
    b = Builder("wide")
    out = ops.cast(b.input("x", TensorType(float32, (3,))), dtype=kind)
    with pytest.raises(UnsupportedOp, match=f"the device has no {kind} tensors"):
        compile(b.build(out), device)


def test_seeds_on_the_device_are_refused() -> None:
    b = Builder("seeded")
    seed, counter = b.input("seed", TensorType(uint32, (2, 2))), b.input("counter", TensorType(uint32, (2,)))
    with pytest.raises(UnsupportedOp, match="the device has no uint32 tensors"):
        compile(b.build(ops.random_uniform(seed, ops.add(counter, 1))), open_device("int32-only"))


def test_bfloat16_is_refused_with_advice(tmp_path: Path) -> None:
    device = open_device("no-bf16")
    with pytest.raises(DeviceError, match=r"has no bfloat16 tensors; use runtime\.dtype float16 or float32"):
        device.upload(np.zeros(3), bfloat16)
    with pytest.raises(DeviceError, match="has no bfloat16"):
        compile(graph("bfloat16"), device, bounds=BOUNDS).allocate_state(SPACE)
    folder = tiny.write_model(tmp_path / "model", tiny.LLAMA)
    with pytest.raises(SettingsError, match=r"runtime.dtype is 'bfloat16'; sim:no-bf16 can compute in .*float16"):
        LLM(folder, runtime=RuntimeSettings(device="sim:no-bf16", dtype="bfloat16"))
    with pytest.raises(SettingsError, match="cache_dtype is 'bfloat16'"):
        open_llm(folder, "sim:no-bf16", cache_dtype="bfloat16")


def test_weights_that_do_not_fit_are_refused() -> None:
    values = np.array([[1.0, 1e300], [2.0, 3.0]])
    source = WeightSource("w", (2, 2), (WeightPart("float64", 2, lambda: values.view(np.uint8)),))
    with pytest.raises(
        DeviceError, match=r"has no float64, and weight 'w' has 1 values such as 1e\+300 that do not fit"
    ):
        open_device("int32-only").prepare(source, ["linear"])


# ------------------------------------------------------------------------------------------------------------ layouts
def test_fractal_blocks_must_fill_tiles() -> None:
    with pytest.raises(DeviceError, match="sim:nz-cache: blocks of 24 tokens do not fill tiles of 16"):
        bound(open_device("nz-cache"), StateSpace(4, 24))


def test_a_cache_that_is_not_paged_refuses_pages() -> None:
    device = open_device("contiguous-cache")
    layer, inputs = bound(device, StateSpace(3, 64)), step(5, 3, size=64)
    layer.run(inputs).wait()
    with pytest.raises(DeviceError, match="a table of 2 blocks per sequence"):
        layer.run(inputs | {"block_table": np.array([[0, 1], [2, -1]], np.int32)})
    with pytest.raises(DeviceError, match="a region of 4096 tokens is longer than the most, 2048"):
        bound(device, StateSpace(1, 4096))


@pytest.mark.parametrize(
    ("longest", "settings", "want"),
    [(256, {}, (128, 128)), (64, {}, (64, 64)), (256, {"max_model_len": 100}, (100, 100))],
)
def test_the_length_of_a_device_limits_that_of_a_model(
    longest: int, settings: dict[str, Any], want: tuple[int, int]
) -> None:
    assert cache_shape(short(), EngineSettings(**settings), longest) == want


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_model_len": 200}, "sim:short takes sequences of at most 128"),
        ({"max_model_len": 300}, "the model was made for 256 tokens"),
        ({"block_size": 16}, "block_size is 16; sim:short takes 128"),
    ],
)
def test_settings_beyond_a_device_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        cache_shape(short(), EngineSettings(**settings), 256)


def short() -> Device:
    return SimDevice("sim:short", "short regions", layout=Contiguous, block_sizes=(), max_length=128)
