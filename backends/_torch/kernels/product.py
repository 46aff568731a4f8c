"""Products along an axis; narrow floats are multiplied in float32."""

from __future__ import annotations

import torch

from xinheng.core import ops

from .elementwise import wide
from .reduction import folded
from .registry import TORCH_KERNELS, calculated

Tensor = torch.Tensor


@TORCH_KERNELS.register(ops.prod, name="torch_prod", when=calculated)
def prod(x: Tensor, *, axis: int, keepdims: bool = False) -> Tensor:
    return folded(torch.prod, x, axis, keepdims, neutral=1).to(x.dtype)


@TORCH_KERNELS.register(ops.cumprod, name="torch_cumprod", when=calculated)
def cumprod(x: Tensor, *, axis: int) -> Tensor:
    return torch.cumprod(wide(x), dim=axis).to(x.dtype)
