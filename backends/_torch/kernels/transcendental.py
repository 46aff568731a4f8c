"""Kernels of the rarer transcendental functions; 16-bit tensors are computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xinheng.core import ops

from .elementwise import wide
from .registry import TORCH_KERNELS, calculated

Tensor = torch.Tensor


def _unary(op: Any, function: Callable[[Tensor], Tensor]) -> None:
    def kernel(x: Tensor) -> Tensor:
        return function(wide(x)).to(x.dtype)

    TORCH_KERNELS.register(op, name=f"torch_{op.name}", when=calculated)(kernel)


for _op, _function in ((ops.atan, torch.atan), (ops.log1p, torch.log1p), (ops.expm1, torch.expm1)):
    _unary(_op, _function)
