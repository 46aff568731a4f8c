"""What a card declares and which kernels it would take, without a card: torch's own questions are answered here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton")

from xinheng.backends._triton.interpreter import VARIABLE
from xinheng.backends.cuda import device as device_module
from xinheng.backends.cuda import kernels as kernels_module
from xinheng.backends.cuda.device import CUDADevice
from xinheng.core import Builder, TensorType, WeightType, ops
from xinheng.core.hal import DeviceOptions, Numerics
from xinheng.core.ir import paged_kv
from xinheng.core.ir.dtype import bfloat16, dtype, int32
from xinheng.core.ir.graph import Node

Open = Callable[..., CUDADevice]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a card of some compute capability."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")

    def make(mode: str = "strict", capability: tuple[int, int] = (9, 0)) -> CUDADevice:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        return CUDADevice(1, DeviceOptions(numerics=Numerics(mode)))

    return make


def layer(scheme: str = "bfloat16") -> dict[str, Node]:
    """Nodes of a layer in bfloat16 by op."""
    b = Builder("layer")
    x = b.input("x", TensorType(bfloat16, (4, 512)))
    q = b.input("q", TensorType(bfloat16, (4, 8, 64)))
    cache = b.state("cache", paged_kv(2, 64, 64, "bfloat16"))
    lists = [b.input(name, TensorType(int32, shape)) for name, shape in (("s", (3,)), ("n", (2,)), ("t", (2, 4)))]
    y = ops.rms_norm(x, b.parameter("gain", TensorType(bfloat16, (512,))), eps=1e-6)
    out = ops.linear(y, b.parameter("weight", WeightType((512, 512), scheme)))
    seen, _ = ops.paged_attention(q, cache, lists[0], lists[1], lists[2], scale=0.1)
    return {node.op.name: node for node in b.build(out=out, seen=seen).nodes}


def chosen(card: CUDADevice, nodes: dict[str, Node]) -> dict[str, str]:
    found = {op: card.select(node)[0] for op, node in nodes.items()}
    return {op: kernel.name for op, kernel in found.items() if kernel is not None}


def test_what_a_card_declares(opened: Open) -> None:
    card = opened()
    assert (card.spec, card.name) == ("cuda:1", "NVIDIA H100 80GB HBM3")
    assert card.device == torch.device("cuda", 1)
    assert card.capabilities.preferred_dtype == "bfloat16"
    assert card.notes() == ()
    lacking = {dtype(name) for name in ("float64", "uint64", "float8_e4m3fnuz")}
    assert not lacking & card.capabilities.dtypes


@pytest.mark.parametrize(("capability", "there"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True)])
def test_eight_bit_floats_need_their_generation(opened: Open, capability: tuple[int, int], there: bool) -> None:
    assert (dtype("float8_e4m3fn") in opened(capability=capability).capabilities.dtypes) is there


def test_modes_take_other_kernels_and_promise_accordingly(opened: Open) -> None:
    strict, fast = opened(), opened("fast")
    assert strict.capabilities.arithmetic is not None and strict.capabilities.arithmetic.determinism == "D4"
    assert fast.capabilities.arithmetic is not None and fast.capabilities.arithmetic.determinism == "D1"
    names = {"rms_norm": "triton_rms_norm", "linear": "triton_linear", "paged_attention": "triton_paged_attention"}
    assert chosen(strict, layer()) == names
    rounded = {"linear": "cublas_linear", "paged_attention": "triton_paged_attention_rounded"}
    assert chosen(fast, layer()) == names | rounded
    assert chosen(fast, layer("q4_k"))["linear"] == "triton_linear"


def test_without_triton_kernels_are_those_of_torch(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (device_module, kernels_module):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    card = opened()
    assert card.capabilities.arithmetic is not None and card.capabilities.arithmetic.determinism == "D1"
    assert chosen(card, layer())["linear"] == "torch_linear"
    assert "triton is not installed" in card.notes()[0]


def test_libraries_below_torch_cut_nothing(opened: Open) -> None:
    opened()
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert not torch.backends.cudnn.allow_tf32
