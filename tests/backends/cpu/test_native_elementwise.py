"""Native rms_norm, rotary_embedding and gated activations against float64, on contiguous and strided operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.core.errors import DeviceError

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
TINY = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}


def wide(x: torch.Tensor) -> Any:
    return x.double().numpy()


def assert_near(got: torch.Tensor, want: Any, inner: float) -> None:
    """Within one rounding to the output type and `inner` float32 roundings of the exact result."""
    error = np.abs(wide(got) - want)
    bound = np.abs(want) * (UNIT[got.dtype] + inner * 2.0**-24) * 1.01 + TINY[got.dtype]
    assert got.shape == want.shape
    assert (error <= bound).all(), float((error / bound).max())


@pytest.mark.parametrize("kind", FLOATS, ids=str)
@pytest.mark.parametrize("width", [1, 15, 64, 100, 576])
def test_rms_norm(build: SimpleNamespace, kind: torch.dtype, width: int) -> None:
    x, weight = (torch.randn(5, width) * 3).to(kind), torch.randn(width).to(kind)
    want = wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 1e-5) * wide(weight)
    got = build.rms_norm(x, weight, eps=1e-5)
    assert got.dtype is kind
    assert_near(got, want, inner=width / 32 + 8)


def test_rms_norm_takes_rows_of_views_one_by_one(native: SimpleNamespace) -> None:
    packed, weight = torch.randn(70, 6 * 64), torch.randn(64)
    heads = packed[:, 64:256].view(70, 3, 64)
    got = native.rms_norm(heads, weight, eps=1e-6)
    assert torch.equal(got, native.rms_norm(heads.contiguous(), weight, eps=1e-6))
    assert torch.equal(got[33, 2], native.rms_norm(heads[33, 2], weight, eps=1e-6))
    tall = packed.view(70, 2, 3, 64).transpose(1, 2)
    assert torch.equal(native.rms_norm(tall, weight, eps=1e-6), native.rms_norm(tall.contiguous(), weight, eps=1e-6))
    weird = packed.t()[:64].t()[:, ::2]
    assert torch.equal(
        native.rms_norm(weird, weight[:32], eps=1e-6), native.rms_norm(weird.contiguous(), weight[:32], eps=1e-6)
    )


@pytest.mark.parametrize("kind", FLOATS, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("turned", [64, 32, 2])
def test_rotary_embedding(build: SimpleNamespace, kind: torch.dtype, interleaved: bool, turned: int) -> None:
    packed, angles = torch.randn(7, 5 * 64).to(kind), torch.randn(7, turned // 2) * 10
    cos, sin = angles.cos(), angles.sin()
    x = packed[:, 64:256].view(7, 3, 64)
    got = build.rotary_embedding(x, cos, sin, interleaved=interleaved)
    want, c, s = wide(x).copy(), wide(cos)[:, None], wide(sin)[:, None]
    first = np.s_[..., 0:turned:2] if interleaved else np.s_[..., : turned // 2]
    second = np.s_[..., 1:turned:2] if interleaved else np.s_[..., turned // 2 : turned]
    a, b = want[first].copy(), want[second].copy()
    want[first], want[second] = a * c - b * s, b * c + a * s
    assert got.dtype is kind and got.is_contiguous()
    assert_near(got, want, inner=0.01)


def test_rotary_refuses_tables_that_do_not_fit(native: SimpleNamespace) -> None:
    x, table = torch.randn(4, 2, 8), torch.randn(4, 4)
    for cos in (torch.randn(3, 4), torch.randn(4, 5), table.double()):
        with pytest.raises(DeviceError, match="do not fit"):
            native.rotary_embedding(x, cos, cos)


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: Any) -> Any:
    return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_none(x: Any) -> Any:
    return 0.5 * x * np.vectorize(math.erfc)(-x * math.sqrt(0.5))


@pytest.mark.parametrize("kind", FLOATS, ids=str)
@pytest.mark.parametrize("function", [silu, gelu_tanh, gelu_none], ids=lambda f: f.__name__)
def test_gated_activations(build: SimpleNamespace, kind: torch.dtype, function: Callable[[Any], Any]) -> None:
    line = torch.cat([torch.linspace(-12, 12, 2001), torch.logspace(-30, 1, 500), torch.tensor([0.0, -0.0])])
    gate, up = line.to(kind), torch.randn(line.shape, generator=torch.Generator().manual_seed(1)).to(kind)
    if function is silu:
        got = build.silu_and_mul(gate, up)
    else:
        got = build.gelu_and_mul(gate, up, approximate=function.__name__.removeprefix("gelu_"))
    assert got.dtype is kind
    assert_near(got, function(wide(gate)) * wide(up), inner=0.01 if function is gelu_none else 7)


@pytest.mark.parametrize("op", ["silu_and_mul", "gelu_and_mul"])
def test_activations_of_extreme_and_special_values(build: SimpleNamespace, op: str) -> None:
    gate = torch.tensor([-torch.inf, torch.inf, torch.nan, -3e38, 3e38, -95.0, 95.0, -1e-45])
    got = getattr(build, op)(gate, torch.ones(8))
    assert torch.isnan(got[[0, 2]]).all()
    assert got[1] == torch.inf
    assert got[4] == gate[4]
    assert got[3] == 0
    if op == "silu_and_mul":
        assert_near(got[5:7], silu(wide(gate[5:7])), inner=0.01)


def test_activations_read_views_of_a_fused_projection(native: SimpleNamespace) -> None:
    fused = torch.randn(300, 2 * 96)
    gate, up = fused[:, :96], fused[:, 96:]
    got = native.silu_and_mul(gate, up)
    assert torch.equal(got, native.silu_and_mul(gate.contiguous(), up.contiguous()))
    assert torch.equal(got[17], native.silu_and_mul(gate[17], up[17]))
    assert torch.equal(native.silu_and_mul(gate, up[:1]), native.silu_and_mul(gate, up[:1].expand(300, 96)))
    with pytest.raises(DeviceError, match="gate is"):
        native.silu_and_mul(gate, up.half())
