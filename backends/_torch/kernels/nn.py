"""Norms, rotary embedding and gated activations, computed in float32 and rounded once."""

from __future__ import annotations

import torch

from xinheng.core import ops

from .elementwise import gelu_wide, silu, wide
from .reduction import averaged
from .registry import FLOATS, TORCH_KERNELS

Tensor = torch.Tensor


@TORCH_KERNELS.register(ops.rms_norm, name="torch_rms_norm", dtypes=FLOATS)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    wider = wide(x)
    return (wider * torch.rsqrt(averaged(wider.square(), -1, True) + eps) * wide(weight)).to(x.dtype)


@TORCH_KERNELS.register(ops.add_rms_norm, name="torch_add_rms_norm", dtypes=FLOATS)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps=eps), total


@TORCH_KERNELS.register(ops.layer_norm, name="torch_layer_norm", dtypes=FLOATS)
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float) -> Tensor:
    centred = wide(x) - averaged(x, -1, True)
    y = centred * torch.rsqrt(averaged(centred.square(), -1, True) + eps)
    y = y if weight is None else y * wide(weight)
    return (y if bias is None else y + wide(bias)).to(x.dtype)


@TORCH_KERNELS.register(ops.rotary_embedding, name="torch_rotary_embedding", dtypes=FLOATS)
def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    half = cos.shape[-1]
    turned, rest = wide(x[..., : 2 * half]), x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    pair = (a * cos - b * sin, b * cos + a * sin)
    joined = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    joined = joined.to(x.dtype)
    return torch.cat((joined, rest), dim=-1) if rest.shape[-1] else joined


@TORCH_KERNELS.register(ops.silu_and_mul, name="torch_silu_and_mul", dtypes=FLOATS)
def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    return (silu(wide(gate)) * wide(up)).to(gate.dtype)


@TORCH_KERNELS.register(ops.gelu_and_mul, name="torch_gelu_and_mul", dtypes=FLOATS)
def gelu_and_mul(gate: Tensor, up: Tensor, *, approximate: str = "none") -> Tensor:
    return (gelu_wide(wide(gate), approximate) * wide(up)).to(gate.dtype)
