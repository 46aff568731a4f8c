"""Kernels that write to computed places, and those whose result is as large as the data say."""

from __future__ import annotations

import torch

from xinheng.core import ops

from .elementwise import wide
from .registry import TORCH_KERNELS, calculated

Tensor = torch.Tensor

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@TORCH_KERNELS.register(ops.scatter, name="torch_scatter", when=calculated)
def scatter(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: str = "none") -> Tensor:
    index = indices.long()
    if reduction == "none":
        return torch.scatter(x, axis, index, updates)
    if x.dtype is torch.bool:
        combined = torch.scatter_reduce(x.to(torch.uint8), axis, index, updates.to(torch.uint8), _REDUCTIONS[reduction])
        return combined != 0
    return torch.scatter_reduce(wide(x), axis, index, wide(updates), _REDUCTIONS[reduction]).to(x.dtype)


@TORCH_KERNELS.register(ops.nonzero, name="torch_nonzero", when=calculated)
def nonzero(x: Tensor) -> Tensor:
    return torch.nonzero(x).T
