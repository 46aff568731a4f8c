"""Kernels of division with a whole quotient."""

from __future__ import annotations

import torch

from xinheng.core import ops

from .elementwise import wide
from .registry import TORCH_KERNELS, calculated

Tensor = torch.Tensor


@TORCH_KERNELS.register(ops.fmod, name="torch_fmod", when=calculated)
def fmod(a: Tensor, b: Tensor) -> Tensor:
    x, y = wide(a), wide(b)
    if x.is_floating_point():
        # torch's vector code gives NaN where a / b overflows: far multiples of b, which change nothing, come first
        far = 2.0**100 if x.dtype is torch.float32 else 2.0**800
        x = torch.fmod(torch.fmod(x, y * far * far), y * far)
    return torch.fmod(x, y).to(a.dtype)


@TORCH_KERNELS.register(ops.trunc_div, name="torch_trunc_div", when=calculated)
def trunc_div(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="trunc")
