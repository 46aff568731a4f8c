"""The commands that run an ONNX model, and that import a Hugging Face model by way of ONNX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xinheng.cli.commands import run_onnx

from .conftest import Command

CPU = ("--device", "cpu:0")


def write(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[str], **constants: Any) -> Path:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10), str(path))
    return path


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """softmax(x w), and the rows of a table."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"], axis=-1),
        helper.make_node("Gather", ["w", "rows"], ["picked"]),
    ]
    inputs = [("x", TensorProto.FLOAT, ["batch", 3]), ("rows", TensorProto.INT64, ["n"])]
    weight = np.arange(24, dtype=np.float32).reshape(3, 8) / 10
    return write(tmp_path / "network.onnx", nodes, inputs, ["y", "picked"], w=weight)


def test_a_model_runs_with_random_inputs(xinheng: Command, network: Path) -> None:
    done = xinheng("run-onnx", network, *CPU, "--integers", "3", "--size", "batch=5")
    assert (done.status, done.err) == (0, "")
    assert "float32[5, 8]" in done.out and "float32[4, 8]" in done.out and " ops on cpu:0" in done.out
    assert "off by" not in done.out
    again = xinheng("run-onnx", network, *CPU, "--integers", "3", "--size", "batch=5")
    other = xinheng("run-onnx", network, *CPU, "--integers", "3", "--size", "batch=5", "--seed", "1")
    assert again.out == done.out != other.out


def test_given_inputs_and_a_comparison(xinheng: Command, network: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    np.save(tmp_path / "rows.npy", np.array([2, 0]))
    given = ("--input", f"x={tmp_path / 'x.npy'}", "--input", f"rows={tmp_path / 'rows.npy'}")
    done = xinheng("run-onnx", network, *CPU, *given, "--compare", "--json")
    assert done.status == 0
    told = json.loads(done.out)
    assert told["device"] == "cpu:0" and told["inputs"] == {"x": [2, 3], "rows": [2]}
    y, picked = told["outputs"]
    assert y["shape"] == [2, 8] and y["mean"] == pytest.approx(1 / 8) and 0 <= y["difference"] < 1e-6
    assert picked["max"] == pytest.approx(2.3) and picked["difference"] == 0


def test_a_difference_is_an_error(xinheng: Command, network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        run_onnx, "_by_onnx_runtime", lambda *_: {"y": np.full((4, 8), 0.5), "picked": np.zeros((4, 8))}
    )
    done = xinheng("run-onnx", network, *CPU, "--integers", "3", "--compare")
    assert done.status == 1
    assert "cpu:0: output 'y' differs from ONNX Runtime by" in done.err and "off by" in done.out


def test_a_shape_can_be_fixed(xinheng: Command, tmp_path: Path) -> None:
    inputs = [("x", TensorProto.FLOAT, [6]), ("shape", TensorProto.INT64, [2])]
    file = write(tmp_path / "m.onnx", [helper.make_node("Reshape", ["x", "shape"], ["y"])], inputs, ["y"])
    np.save(tmp_path / "shape.npy", np.array([3, 2]))
    assert "must be known at import" in xinheng("run-onnx", file, *CPU).err
    done = xinheng("run-onnx", file, *CPU, "--fix", f"shape={tmp_path / 'shape.npy'}", "--compare")
    assert done.status == 0 and "float32[3, 2]" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "z=x.npy"], "x.npy: this is no array of numpy"),
        (["--input", "nothing"], "'nothing' is not of the form name=file.npy"),
        (["--size", "sequence=2"], "the inputs have no size 'sequence'; they have ['batch', 'n']"),
        (["--size", "batch=many"], "--size 'batch=many' is not of the form name=number"),
    ],
)
def test_wrong_arguments(xinheng: Command, network: Path, arguments: list[str], message: str) -> None:
    done = xinheng("run-onnx", network, *CPU, *arguments)
    assert done.status == 1 and message in done.err


def test_an_input_that_does_not_exist(xinheng: Command, network: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    done = xinheng("run-onnx", network, *CPU, "--input", f"xx={tmp_path / 'x.npy'}")
    assert done.status == 1 and "the model has no input 'xx'" in done.err


def test_a_file_that_is_no_model(xinheng: Command, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("nothing")
    done = xinheng("run-onnx", tmp_path / "m.onnx", *CPU)
    assert done.status == 1 and "this is not an ONNX model" in done.err


def test_what_is_not_supported_is_listed(xinheng: Command, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Strange", ["a"], ["b"], domain="mine"),
        helper.make_node("Strange", ["b"], ["y"], domain="mine"),
    ]
    file = write(tmp_path / "m.onnx", nodes, [("x", TensorProto.FLOAT, [2])], ["y"])
    done = xinheng("import", file, *CPU, "--json")
    assert done.status == 1
    assert "ONNX ops without an import rule: mine.Strange (2 nodes)" in done.err
    assert json.loads(done.out.splitlines()[0])["unsupported"] == {"mine.Strange": 2}


def test_an_onnx_file_is_reported(xinheng: Command, network: Path) -> None:
    done = xinheng("import", network, *CPU)
    assert done.status == 0, done.err
    assert "float32[batch, 3]" in done.out and "6 nodes of 6 ops, 1 parameters" in done.out
    assert "every op has a kernel" in done.out


def test_a_hugging_face_model_is_exported(xinheng: Command, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    file = tmp_path / "llama.onnx"
    done = xinheng("import", f"hf:{tmp_path / 'llama'}", "--out", file, *CPU, "--json")
    assert done.status == 0, done.err
    told = json.loads(done.out)
    assert told["inputs"] == {"input_ids": "int64[batch, seq]", "position_ids": "int64[batch, seq]"}
    assert told["outputs"] == {"logits": "float32[batch, seq, 64]"}
    assert told["onnx"] == str(file) and told["unsupported"] == {} and told["device"] is None
    assert xinheng("run-onnx", file, *CPU, "--compare").status == 0


def test_a_folder_without_a_model(xinheng: Command, tmp_path: Path) -> None:
    done = xinheng("import", f"hf:{tmp_path}", *CPU)
    assert done.status == 1 and "there is no config.json" in done.err
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    done = xinheng("import", tmp_path, *CPU)
    assert done.status == 1 and "the export to ONNX failed" in done.err
