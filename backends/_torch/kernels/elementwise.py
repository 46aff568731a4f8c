"""Elementwise kernels. Transcendental functions of 16-bit tensors are computed in float32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from xinheng.core import ops
from xinheng.core.ir.dtype import DType

from ..handles import DTYPES
from .registry import TORCH_KERNELS, calculated, held

Tensor = torch.Tensor


def wide(x: Tensor) -> Tensor:
    """A 16-bit or narrower float tensor in float32; others as they are."""
    return x.float() if x.is_floating_point() and x.element_size() < 4 else x


# Torch has other instructions for these where a tensor does not fill the last vector register, so that the bits of an
# element would depend on how many others there are; exp, erf and tanh have no such places.
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)) in the dtype of x."""
    return torch.reciprocal(1.0 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x) in the dtype of x."""
    return x / (1.0 + torch.exp(-x))


def power(a: Tensor, b: Tensor) -> Tensor:
    """a to the b, floats by way of float64, which hides the difference."""
    if not a.is_floating_point():
        return torch.pow(a, b)
    return torch.pow(a.double(), b.double()).to(a.dtype)


def _unary(op: Any, function: Callable[[Tensor], Tensor]) -> None:
    def kernel(x: Tensor) -> Tensor:
        return function(wide(x)).to(x.dtype)

    TORCH_KERNELS.register(op, name=f"torch_{op.name}", when=calculated)(kernel)


for _op, _function in (
    (ops.neg, torch.neg),
    (ops.abs, torch.abs),
    (ops.exp, torch.exp),
    (ops.log, torch.log),
    (ops.sin, torch.sin),
    (ops.cos, torch.cos),
    (ops.tanh, torch.tanh),
    (ops.erf, torch.erf),
    (ops.sigmoid, sigmoid),
    (ops.sqrt, torch.sqrt),
    (ops.rsqrt, torch.rsqrt),
    (ops.square, torch.square),
    (ops.reciprocal, torch.reciprocal),
    (ops.floor, torch.floor),
    (ops.round, torch.round),
    (ops.silu, silu),
):
    _unary(_op, _function)


def _pair(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Two operands of which one may be a Python number, as tensors of one dtype."""
    if not isinstance(a, Tensor):
        return torch.as_tensor(a, dtype=b.dtype, device=b.device), b
    if not isinstance(b, Tensor):
        return a, torch.as_tensor(b, dtype=a.dtype, device=a.device)
    return a, b


def _binary(op: Any, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    def kernel(a: Any, b: Any) -> Tensor:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return function(a, b)
        # A number is not representable in a narrow dtype, so that it has to meet the tensor in a wider one.
        tensor: Tensor = a if isinstance(a, Tensor) else b
        made = function(*_pair(*(wide(x) if isinstance(x, Tensor) else x for x in (a, b))))
        return made if made.dtype is torch.bool else made.to(tensor.dtype)

    TORCH_KERNELS.register(op, name=f"torch_{op.name}", when=calculated)(kernel)


for _pairwise_op, _pairwise in (
    (ops.add, torch.add),
    (ops.sub, torch.sub),
    (ops.mul, torch.mul),
    (ops.div, torch.div),
    (ops.maximum, torch.maximum),
    (ops.minimum, torch.minimum),
    (ops.eq, torch.eq),
    (ops.lt, torch.lt),
    (ops.le, torch.le),
    (ops.pow, power),
    (ops.bitwise_and, torch.bitwise_and),
    (ops.logical_and, torch.logical_and),
    (ops.logical_or, torch.logical_or),
):
    _binary(_pairwise_op, _pairwise)


@TORCH_KERNELS.register(ops.logical_not, name="torch_logical_not")
def logical_not(x: Tensor) -> Tensor:
    return torch.logical_not(x)


@TORCH_KERNELS.register(ops.isfinite, name="torch_isfinite", when=calculated)
def isfinite(x: Tensor) -> Tensor:
    return torch.isfinite(x)


@TORCH_KERNELS.register(ops.clamp, name="torch_clamp", when=calculated)
def clamp(x: Tensor, *, low: float | None = None, high: float | None = None) -> Tensor:
    wider = wide(x)
    wider = wider if low is None else torch.maximum(wider, torch.as_tensor(low, dtype=wider.dtype, device=x.device))
    wider = wider if high is None else torch.minimum(wider, torch.as_tensor(high, dtype=wider.dtype, device=x.device))
    return wider.to(x.dtype)


@TORCH_KERNELS.register(ops.bitwise_shift, name="torch_bitwise_shift", when=calculated)
def bitwise_shift(x: Tensor, *, bits: int) -> Tensor:
    return torch.bitwise_left_shift(x, bits) if bits >= 0 else torch.bitwise_right_shift(x, -bits)


@TORCH_KERNELS.register(ops.where, name="torch_where", when=calculated)
def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    return torch.where(condition, *_pair(a, b))


@TORCH_KERNELS.register(ops.cast, name="torch_cast", when=held)
def cast(x: Tensor, *, dtype: DType) -> Tensor:
    if dtype.is_float and dtype.bits < 32 and x.dtype in _BEYOND_FLOAT32:
        x = _rounded_to_odd(x)
    return x.to(DTYPES[dtype])


_BEYOND_FLOAT32 = (torch.float64, torch.int64, torch.int32, torch.uint64, torch.uint32)


def _rounded_to_odd(x: Tensor) -> Tensor:
    """x in float32, inexact values with an odd last bit, so that the next rounding is as if it were the only one.

    Torch converts to narrow dtypes by way of float32. Boldo and Melquiond, "Emulation of FMA and correctly rounded
    sums: proved algorithms using rounding to odd", IEEE Transactions on Computers 57 (2008).
    """
    exact = x.to(torch.float64)
    near = exact.to(torch.float32)
    inward = torch.where(near.double().abs() > exact.abs(), torch.nextafter(near, torch.zeros_like(near)), near)
    inexact = (inward.double() != exact) & exact.isfinite()
    return (inward.view(torch.int32) | inexact.to(torch.int32)).view(torch.float32)


def gelu_wide(x: Tensor, approximate: str) -> Tensor:
    """gelu in the dtype of x. Torch's own erf form is less exact than its erf, and NaN at infinity."""
    if approximate == "none":
        return 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


@TORCH_KERNELS.register(ops.gelu, name="torch_gelu", when=calculated)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return gelu_wide(wide(x), approximate).to(x.dtype)
