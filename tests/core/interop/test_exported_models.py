"""Models as torch exports them: BERT, a residual network and Qwen 3, compared on the CPU with ONNX Runtime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from xinheng.backends.cpu import CPUBackend
from xinheng.core.compiler import compile
from xinheng.core.hal import DeviceSpec
from xinheng.core.interop import import_onnx
from xinheng.core.ir import verify

onnxruntime: Any = import_module("onnxruntime")
Feeds = Mapping[str, NDArray[Any]]


def exported(module: nn.Module, arguments: tuple[Any, ...], sizes: Sequence[Mapping[int, str]]) -> Any:
    """A module as an ONNX model whose named sizes are symbolic."""
    dims = {name: torch.export.Dim(name, min=2, max=64) for names in sizes for name in names.values()}
    shapes = tuple({axis: dims[name] for axis, name in names.items()} for names in sizes)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(), arguments, dynamo=True, opset_version=23, dynamic_shapes=shapes, verbose=False
        )
    assert program is not None
    return program.model_proto


def agree(proto: Any, runs: Sequence[Feeds]) -> list[str]:
    """Demand that the CPU and ONNX Runtime give the same; returns the ops of the graph."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    model = import_onnx(proto)
    verify(model.graph)
    device = CPUBackend().open(DeviceSpec.parse("cpu:0"))
    executable = compile(model.graph, device)
    bound = executable.bind({name: executable.prepare(name, array) for name, array in model.parameters.items()})
    for feeds in runs:
        bound.run({model.inputs[name]: array for name, array in feeds.items()}).wait()
        for output, want in zip(session.get_outputs(), session.run(None, dict(feeds)), strict=True):
            got = device.download(bound.outputs[model.outputs[output.name]])
            np.testing.assert_allclose(got, want, atol=2e-5 * float(np.abs(want).max()), rtol=1e-4)
    return [node.op.name for node in model.graph.nodes]


def test_bert() -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    names = {0: "batch", 1: "seq"}
    ids = torch.randint(0, 99, (2, 7))
    proto = exported(BertModel(config), (ids, torch.ones_like(ids)), (names, names))
    rng = np.random.default_rng(0)
    runs = []
    for batch, length in ((2, 7), (3, 12)):
        mask = np.ones((batch, length), np.int64)
        mask[-1, length // 2 :] = 0
        runs.append({"input_ids": rng.integers(0, 99, (batch, length)), "attention_mask": mask})
    used = agree(proto, runs)
    assert {"matmul", "softmax"} <= set(used)


class Residual(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        plain = inputs == outputs and stride == 1
        around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.around = nn.Identity() if plain else around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.around(x))


def test_residual_network() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *(Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 32, 2)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean, module.running_var = (
                torch.randn_like(module.weight),
                torch.rand_like(module.weight) + 0.5,
            )
    proto = exported(network, (torch.randn(2, 3, 48, 48),), ({0: "batch"},))
    rng = np.random.default_rng(0)
    name = proto.graph.input[0].name
    used = agree(proto, [{name: rng.normal(size=(n, 3, 48, 48)).astype(np.float32)} for n in (2, 3)])
    assert used.count("conv") == 9 and "max_pool" in used


class Logits(nn.Module):
    """A causal model without a cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return self.model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits


@pytest.mark.parametrize("heads", [2, 4], ids=["grouped", "plain"])
def test_qwen3(heads: int) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=heads,
        head_dim=8,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    names = {0: "batch", 1: "seq"}
    ids = torch.randint(0, 99, (2, 7))
    positions = torch.arange(7).expand(2, 7).contiguous()
    proto = exported(Logits(Qwen3ForCausalLM(config)), (ids, positions), (names, names))
    rng = np.random.default_rng(0)
    runs = [
        {
            "input_ids": rng.integers(0, 99, (batch, length)),
            "position_ids": np.broadcast_to(np.arange(length), (batch, length)).copy(),
        }
        for batch, length in ((2, 7), (3, 12))
    ]
    assert "rms_norm" in agree(proto, runs)
