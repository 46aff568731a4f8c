"""`examples/graph_plugin` takes whole graphs: models run through ONNX Runtime, alone and beside another device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xinheng.core import Builder, Device, PluginManager, TensorType, compile, ops, sym
from xinheng.core.errors import DeviceError, GraphError, UnsupportedOp
from xinheng.core.hal import Numerics, PartitionedExecutable, Profile, ReferenceDevice
from xinheng.core.ir.dtype import bfloat16, float32

from .conftest import ROOT, Install, Run, on_path
from .models import by_op, greedy_ids

pytest.importorskip("onnxruntime")

X = TensorType(float32, (sym("n"), 4))
ONES = np.ones((2, 4), np.float32)


@pytest.fixture(scope="module")
def site(install: Install) -> Path:
    return install(ROOT / "examples" / "graph_plugin")


@pytest.fixture(scope="module")
def onnxrt(site: Path) -> Iterator[Device]:
    with on_path(site):
        yield PluginManager().open("onnxrt:0")


def test_it_is_found_by_its_entry_point(site: Path, run: Run) -> None:
    records = {
        record["name"]: record for record in json.loads(run("-m", "xinheng", "devices", "--json", sites=(site,)))
    }
    assert records["onnxrt"]["status"] == "available"
    assert records["onnxrt"]["devices"][0]["driver"].startswith("onnxruntime ")


def test_a_tiny_model_says_the_same(onnxrt: Device, tiny_llama: Path) -> None:
    want, _ = greedy_ids(tiny_llama, "cpu:0")
    got, receipt = greedy_ids(tiny_llama, "onnxrt:0")
    assert got == want
    assert set(by_op(receipt).values()) == {("onnx", "onnxrt:0")}
    assert (receipt.moved, receipt.decomposed) == (0, ())


def test_a_real_model_says_the_same(onnxrt: Device, smollm2_path: Path) -> None:
    prompts = ["The capital of France is"]
    want, _ = greedy_ids(smollm2_path, "cpu:0", 32, prompts)
    got, receipt = greedy_ids(smollm2_path, "onnxrt:0", 32, prompts)
    assert got == want and len(got[0]) == 32
    assert receipt.moved == 0


def test_it_gets_whole_partitions(onnxrt: Device, tiny_llama: Path) -> None:
    want, _ = greedy_ids(tiny_llama, "cpu:0")
    got, receipt = greedy_ids(tiny_llama, "onnxrt:0", overrides={"silu_and_mul": "reference"})
    assert got == want
    assert receipt.by_device()["reference"] == 2
    b = Builder()
    graph = b.build(ops.exp(ops.neg(ops.silu(ops.tanh(ops.abs(b.input("x", X)))))))
    exe = compile(graph, onnxrt, numerics=Numerics(overrides={"silu": "reference"}))
    assert isinstance(exe, PartitionedExecutable)
    assert [(type(part).__name__, len(part.graph.nodes)) for part in exe.parts] == [
        ("OnnxExecutable", 2),
        ("KernelExecutable", 1),
        ("OnnxExecutable", 2),
    ]
    bound = exe.bind({})
    bound.run({"x": ONES}).wait()
    t = np.tanh(np.float32(1))
    np.testing.assert_allclose(bound.outputs["out0"], np.exp(-t / (1 + np.exp(-t))) * ONES, rtol=1e-6)


def test_what_it_cannot_run_moves_or_is_an_error_with_the_reason(onnxrt: Device) -> None:
    b = Builder()
    graph = b.build(ops.neg(b.input("x", TensorType(bfloat16, (4,)))))
    with pytest.raises(UnsupportedOp, match=r"onnxrt:0 cannot run neg on bfloat16\[4\] \(onnx: takes no bfloat16\)"):
        compile(graph, onnxrt)
    assert compile(graph, onnxrt, fallback=ReferenceDevice()).receipt.moved == 1


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({}, GraphError, "input 'x' is missing"),
        ({"x": np.ones((2, 4))}, GraphError, "input 'x' is float64, the graph wants float32"),
        ({"x": np.ones((4, 4), np.float32)}, DeviceError, "n is 4, but the graph was compiled for at most 3"),
        ({"x": np.ones((2, 3), np.float32)}, GraphError, "size 4 should be 4, but is 3"),
    ],
)
def test_inputs_that_do_not_fit(onnxrt: Device, inputs: Any, error: type[Exception], message: str) -> None:
    b = Builder()
    bound = compile(b.build(ops.neg(b.input("x", X))), onnxrt, bounds={"n": 3}).bind({})
    with pytest.raises(error, match=message):
        bound.run(inputs)


def test_a_profile_has_one_span_for_the_whole_graph(onnxrt: Device) -> None:
    b = Builder("doubled")
    bound = compile(b.build(ops.exp(ops.neg(b.input("x", X)))), onnxrt).bind({})
    profile = Profile()
    bound.run({"x": ONES}, profile=profile)
    assert [(span.op, span.kernel) for span in profile.spans] == [("doubled", "onnx")]
