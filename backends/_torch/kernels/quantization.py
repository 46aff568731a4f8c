"""Quantised tensors: codes with scales, and products of codes."""

from __future__ import annotations

import torch

from xinheng.core import ops
from xinheng.core.ir.dtype import DType, int8
from xinheng.core.ops.quantization import code_range

from ..handles import DTYPES
from .elementwise import cast, wide
from .registry import FLOATS, TORCH_KERNELS, held

Tensor = torch.Tensor


def _along(scale: Tensor, x: Tensor, axis: int | None) -> Tensor:
    if axis is None:
        return scale.reshape(())
    shape = [1] * x.dim()
    shape[axis] = -1
    return scale.reshape(shape)


def _working(dtype: DType) -> torch.dtype:
    """What a result of `dtype` is computed in."""
    return torch.float64 if DTYPES[dtype] is torch.float64 else torch.float32


def _codes(x: Tensor, zero_point: Tensor | None, dtype: DType) -> Tensor:
    """The codes of numbers that are divided by their scale."""
    whole = torch.round(x) if dtype.is_integer else x
    return cast((whole if zero_point is None else whole + zero_point).clamp(*code_range(dtype)), dtype=dtype)


@TORCH_KERNELS.register(ops.quantize, name="torch_quantize", dtypes=FLOATS, when=held)
def quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, dtype: DType, axis: int | None = None
) -> Tensor:
    shifted = None if zero_point is None else _along(zero_point, x, axis)
    return _codes(wide(x) / _along(scale, x, axis), shifted, dtype)


@TORCH_KERNELS.register(ops.dequantize_linear, name="torch_dequantize_linear", when=held)
def dequantize_linear(
    codes: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, dtype: DType, axis: int | None = None
) -> Tensor:
    shifted = codes if zero_point is None else codes.to(torch.int32) - _along(zero_point, codes, axis)
    return cast(shifted.to(_working(dtype)) * _along(scale, codes, axis), dtype=dtype)


@TORCH_KERNELS.register(ops.dynamic_quant, name="torch_dynamic_quant", dtypes=FLOATS, when=held)
def dynamic_quant(x: Tensor, *, dtype: DType = int8) -> tuple[Tensor, Tensor]:
    top = wide(x).abs().amax(-1, keepdim=True)
    scale = torch.where(top > 0, top / code_range(dtype)[1], 1.0)
    return _codes(wide(x) / scale, None, dtype), scale.float()


@TORCH_KERNELS.register(ops.int_matmul, name="torch_int_matmul")
def int_matmul(a: Tensor, b: Tensor) -> Tensor:
    # float32 holds sums of so many products of eight-bit integers exactly, and few devices multiply integers
    chunk = 1024 if a.dtype is b.dtype is torch.int8 else 256
    total = torch.zeros((), dtype=torch.int32, device=a.device)
    for start in range(0, max(a.shape[-1], 1), chunk):
        part = a[..., start : start + chunk].float() @ b[..., start : start + chunk, :].float()
        total = total + part.to(torch.int32)
    return total


@TORCH_KERNELS.register(ops.quant_matmul, name="torch_quant_matmul", when=held)
def quant_matmul(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None = None, *, dtype: DType
) -> Tensor:
    kind = _working(dtype)
    product = x.to(kind) @ weight.to(kind).T if x.is_floating_point() else int_matmul(x, weight.T).to(kind)
    scaled = product * x_scale * weight_scale
    return cast(scaled if bias is None else scaled + wide(bias), dtype=dtype)
