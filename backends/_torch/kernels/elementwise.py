"""Elementwise kernels. Transcendental functions of 16-bit tensors are computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from xinheng.core import ops
from xinheng.core.ir.dtype import DType

from ..handles import DTYPES
from .registry import TORCH_KERNELS

Tensor = torch.Tensor


def wide(x: Tensor) -> Tensor:
    """A 16-bit or narrower float tensor in float32; others as they are."""
    return x.float() if x.is_floating_point() and x.element_size() < 4 else x


def _unary(op: Any, function: Callable[[Tensor], Tensor]) -> None:
    def kernel(x: Tensor) -> Tensor:
        return function(wide(x)).to(x.dtype)

    TORCH_KERNELS.register(op, name=f"torch_{op.name}")(kernel)


for _op, _function in (
    (ops.neg, torch.neg),
    (ops.abs, torch.abs),
    (ops.exp, torch.exp),
    (ops.log, torch.log),
    (ops.sin, torch.sin),
    (ops.cos, torch.cos),
    (ops.tanh, torch.tanh),
    (ops.erf, torch.erf),
    (ops.sigmoid, torch.sigmoid),
    (ops.sqrt, torch.sqrt),
    (ops.rsqrt, torch.rsqrt),
    (ops.square, torch.square),
    (ops.silu, F.silu),
):
    _unary(_op, _function)


def _pair(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Two operands of which one may be a Python number, as tensors of one dtype."""
    if not isinstance(a, Tensor):
        return torch.as_tensor(a, dtype=b.dtype, device=b.device), b
    if not isinstance(b, Tensor):
        return a, torch.as_tensor(b, dtype=a.dtype, device=a.device)
    return a, b


def _binary(op: Any, function: Callable[[Any, Any], Tensor], tensors: bool = False) -> None:
    def kernel(a: Any, b: Any) -> Tensor:
        return function(*_pair(a, b)) if tensors or not isinstance(a, Tensor) else function(a, b)

    TORCH_KERNELS.register(op, name=f"torch_{op.name}")(kernel)


for _op, _pairwise, _tensors in (
    (ops.add, torch.add, False),
    (ops.sub, torch.sub, False),
    (ops.mul, torch.mul, False),
    (ops.div, torch.div, False),
    (ops.maximum, torch.maximum, True),
    (ops.minimum, torch.minimum, True),
    (ops.eq, torch.eq, False),
    (ops.lt, torch.lt, False),
    (ops.le, torch.le, False),
    (ops.logical_and, torch.logical_and, True),
    (ops.logical_or, torch.logical_or, True),
):
    _binary(_op, _pairwise, _tensors)


@TORCH_KERNELS.register(ops.logical_not, name="torch_logical_not")
def logical_not(x: Tensor) -> Tensor:
    return torch.logical_not(x)


@TORCH_KERNELS.register(ops.where, name="torch_where")
def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return torch.where(condition, *_pair(a, b))
    return torch.where(condition, a, b)


@TORCH_KERNELS.register(ops.cast, name="torch_cast")
def cast(x: Tensor, *, dtype: DType) -> Tensor:
    return x.to(DTYPES[dtype])


@TORCH_KERNELS.register(ops.gelu, name="torch_gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return F.gelu(wide(x), approximate=approximate).to(x.dtype)
