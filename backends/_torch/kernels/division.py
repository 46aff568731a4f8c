"""Kernels of division with a whole quotient."""

from __future__ import annotations

import torch

from xinheng.core import ops

from .elementwise import wide
from .registry import TORCH_KERNELS, calculated

Tensor = torch.Tensor


@TORCH_KERNELS.register(ops.fmod, name="torch_fmod", when=calculated)
def fmod(a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(wide(a), wide(b)).to(a.dtype)


@TORCH_KERNELS.register(ops.trunc_div, name="torch_trunc_div", when=calculated)
def trunc_div(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="trunc")
