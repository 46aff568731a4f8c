"""Doubles of norms, gated activations and rotary embedding, with the rules of the operator manual of torch_npu 2.13."""

from __future__ import annotations

import torch

from .rules import FLOATS, FUSED, demand, demand_dtype, double, emulated

Tensor = torch.Tensor


def _normed(name: str, x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    demand_dtype(name, "x", x, FLOATS)
    demand(name, 2 <= x.dim() <= 8, f"x must have 2 to 8 axes, not {x.dim()}")
    demand(name, gamma.dtype is x.dtype, "gamma must have the dtype of x")
    demand(name, gamma.dim() == 1 and gamma.shape[0] == x.shape[-1], "gamma must match the last axis of x")
    wide = x.double()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * rstd * gamma.double()).to(x.dtype), rstd.float()


@double("npu::npu_rms_norm")
def npu_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    return _normed("npu_rms_norm", input, gamma, epsilon)


@double("npu::npu_add_rms_norm", FUSED)
def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    demand("npu_add_rms_norm", x1.dtype is x2.dtype and x1.shape == x2.shape, "x1 and x2 must be alike")
    total = x1 + x2
    return (*_normed("npu_add_rms_norm", total, gamma, epsilon), total)


@double("npu::npu_swiglu")
def npu_swiglu(input: Tensor, dim: int = -1) -> Tensor:
    name = "npu_swiglu"
    demand_dtype(name, "x", input, FLOATS)
    demand(name, 1 <= input.dim() <= 8, "x must have 1 to 8 axes")
    demand(name, input.shape[dim] % 2 == 0, f"axis {dim} of {list(input.shape)} must be even")
    demand(name, emulated().fused or input.shape[-1] % 32 == 0, "the last axis must be a multiple of 32 on this chip")
    gate, up = input.double().chunk(2, dim)
    return (gate / (1 + torch.exp(-gate)) * up).to(input.dtype)


@double("npu::npu_rotary_mul", FUSED)
def npu_rotary_mul(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    name, shape = "npu_rotary_mul", list(input.shape)
    demand(name, rotary_mode in ("half", "interleave"), f"rotary_mode {rotary_mode!r} is neither half nor interleave")
    demand(name, rotate is None, "this double knows no rotate matrix")
    demand_dtype(name, "input", input, FLOATS)
    demand(name, input.dim() == 4 and input.is_contiguous(), f"input must be contiguous and of 4 axes, not {shape}")
    width, inner = shape[3], shape[1:3]
    demand(name, width % 2 == 0 and width < 896, f"the head has {width} numbers; it must be even and below 896")
    most = inner[0] * inner[1] if rotary_mode == "interleave" else max(inner)
    demand(name, most < 1000, f"batch and heads {inner} are too many")
    for table in (r1, r2):
        demand(name, table.dtype is input.dtype, "r1 and r2 must have the dtype of input")
        fits = list(table.shape) == [shape[0], 1, 1, width]
        demand(name, fits, f"tables of SBND {shape} must be S11D of full width, not {list(table.shape)}")
    x = input.double()
    if rotary_mode == "half":
        a, b = x.chunk(2, -1)
        turned = torch.cat((-b, a), -1)
    else:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return (x * r1.double() + turned * r2.double()).to(input.dtype)
