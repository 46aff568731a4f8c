"""Reductions and orderings; narrow floats accumulate in float32."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from xinheng.core import ops

from .elementwise import wide
from .registry import TORCH_KERNELS, calculated

Tensor = torch.Tensor


BLOCK = 1 << 14
"""Terms that are folded in one go: of more, torch divides those of a single row among its threads."""


def folded(fold: Any, x: Tensor, axis: int, keepdims: bool = False, neutral: int = 0) -> Tensor:
    """`torch.sum` or `torch.prod` along an axis, in an order that the other rows and their layout do not change."""
    rows = wide(x).movedim(axis, -1).contiguous()
    if rows.shape[-1] > BLOCK:
        padded = F.pad(rows, (0, -rows.shape[-1] % BLOCK), value=neutral)
        rows = fold(padded.reshape(*padded.shape[:-1], -1, BLOCK), dim=-1)
    made: Tensor = fold(rows, dim=-1)
    return made.unsqueeze(axis) if keepdims else made


def averaged(x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """The mean along an axis, by `folded`."""
    return folded(torch.sum, x, axis, keepdims) / x.shape[axis]


@TORCH_KERNELS.register(ops.sum, name="torch_sum", when=calculated)
def sum(x: Tensor, *, axis: int, keepdims: bool = False) -> Tensor:
    return folded(torch.sum, x, axis, keepdims).to(x.dtype)


@TORCH_KERNELS.register(ops.mean, name="torch_mean", when=calculated)
def mean(x: Tensor, *, axis: int, keepdims: bool = False) -> Tensor:
    return averaged(x, axis, keepdims).to(x.dtype)


@TORCH_KERNELS.register(ops.amax, name="torch_amax", when=calculated)
def amax(x: Tensor, *, axis: int, keepdims: bool = False) -> Tensor:
    return torch.amax(x, dim=axis, keepdim=keepdims)


@TORCH_KERNELS.register(ops.cumsum, name="torch_cumsum", when=calculated)
def cumsum(x: Tensor, *, axis: int) -> Tensor:
    return torch.cumsum(wide(x), dim=axis).to(x.dtype)


@TORCH_KERNELS.register(ops.argmax, name="torch_argmax", when=calculated)
def argmax(x: Tensor, *, axis: int = -1) -> Tensor:
    # torch's argmax may return any of several equal elements; the first index of the maximum is what the op says
    best = x == torch.amax(x, dim=axis, keepdim=True)
    if x.is_floating_point():
        best = best | x.isnan()
    return torch.argmax(best.to(torch.uint8), dim=axis).to(torch.int32)


@TORCH_KERNELS.register(ops.topk, name="torch_topk", when=calculated)
def topk(x: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    values, order = torch.sort(x, dim=-1, descending=True, stable=True)
    return values[..., :k], order[..., :k].to(torch.int32)


@TORCH_KERNELS.register(ops.softmax, name="torch_softmax", when=calculated)
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.softmax(wide(x), dim=axis).to(x.dtype)
