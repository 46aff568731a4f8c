"""Norms, alone, after an addition, and with codes of eight bits as their result; a few rows per program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from xinheng.core import ops
from xinheng.core.ir.dtype import DType, int8

from ..launch import launch, tiles
from .quantization import coded, divisor_of, eight_bit, rows_of
from .registry import FLOATS, TRITON_KERNELS
from .scalar import inverse_root, narrow, sum_of, widen

Tensor = torch.Tensor


@triton.jit(do_not_specialize=["rows"])
def rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    total,
    scale,
    rows,
    width,
    eps,
    CODES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rows of x, plus residual where there is one, normed; as codes of eight bits and their scales where `CODES`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    base = row.to(tl.int64)[:, None] * width
    squares = tl.full((ROWS, BLOCK), 0, tl.float32)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & (column < width)[None, :]
        value = widen(tl.load(x + base + column[None, :], there, 0.0))
        if residual is not None:
            value += widen(tl.load(residual + base + column[None, :], there, 0.0))
            rounded = narrow(value, total.dtype.element_ty)
            tl.store(total + base + column[None, :], rounded, there)
            if not CODES:
                value = widen(rounded)
        squares += value * value
    factor = inverse_root(tl.div_rn(sum_of(squares, 1), width.to(tl.float32)) + eps)[:, None]
    top = tl.full((ROWS, BLOCK), 0, tl.float32)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & (column < width)[None, :]
        value = widen(tl.load(x + base + column[None, :], there, 0.0))
        if residual is not None:
            value += widen(tl.load(residual + base + column[None, :], there, 0.0))
            if not CODES:
                value = widen(narrow(value, total.dtype.element_ty))
        gain = widen(tl.load(weight + column, column < width, 0.0))
        normed = value * factor * gain[None, :]
        if CODES:
            top = tl.maximum(top, tl.abs(normed))
        else:
            tl.store(out + base + column[None, :], narrow(normed, out.dtype.element_ty), there)
    if CODES:
        divisor = divisor_of(top)
        tl.store(scale + row, divisor, row < rows)
        for start in range(0, width, BLOCK):
            column = start + tl.arange(0, BLOCK)
            there = (row < rows)[:, None] & (column < width)[None, :]
            value = widen(tl.load(x + base + column[None, :], there, 0.0))
            value += widen(tl.load(residual + base + column[None, :], there, 0.0))
            gain = widen(tl.load(weight + column, column < width, 0.0))
            tl.store(out + base + column[None, :], coded(value * factor * gain[None, :], divisor), there)


@triton.jit(do_not_specialize=["rows"])
def layer_norm_kernel(x, weight, bias, out, rows, width, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of x less their mean, divided by the root of the mean square of that."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    base = row.to(tl.int64)[:, None] * width
    sums = tl.full((ROWS, BLOCK), 0, tl.float32)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & (column < width)[None, :]
        sums += widen(tl.load(x + base + column[None, :], there, 0.0))
    mean = tl.div_rn(sum_of(sums, 1), width.to(tl.float32))[:, None]
    squares = tl.full((ROWS, BLOCK), 0, tl.float32)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & (column < width)[None, :]
        centred = widen(tl.load(x + base + column[None, :], there, 0.0)) - mean
        squares += tl.where(there, centred * centred, 0.0)
    factor = inverse_root(tl.div_rn(sum_of(squares, 1), width.to(tl.float32)) + eps)[:, None]
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & (column < width)[None, :]
        y = (widen(tl.load(x + base + column[None, :], there, 0.0)) - mean) * factor
        if weight is not None:
            y *= widen(tl.load(weight + column, column < width, 0.0))[None, :]
        if bias is not None:
            y += widen(tl.load(bias + column, column < width, 0.0))[None, :]
        tl.store(out + base + column[None, :], narrow(y, out.dtype.element_ty), there)


@TRITON_KERNELS.register(ops.rms_norm, name="triton_rms_norm", dtypes=FLOATS)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    whole, rows, width, how = rows_of(x)
    out = torch.empty_like(whole)
    grid = (tiles(rows, how["ROWS"]),)
    launch(
        rms_norm_kernel, grid, whole, None, weight.contiguous(), out, None, None, rows, width, eps, CODES=False, **how
    )
    return out


@TRITON_KERNELS.register(ops.add_rms_norm, name="triton_add_rms_norm", dtypes=FLOATS)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    whole, rows, width, how = rows_of(x)
    out, total = torch.empty_like(whole), torch.empty_like(whole)
    given = whole, residual.contiguous(), weight.contiguous(), out, total, None
    launch(rms_norm_kernel, (tiles(rows, how["ROWS"]),), *given, rows, width, eps, CODES=False, **how)
    return out, total


@TRITON_KERNELS.register(ops.add_rms_norm_quant, name="triton_add_rms_norm_quant", dtypes=FLOATS, when=eight_bit)
def add_rms_norm_quant(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, dtype: DType = int8
) -> tuple[Tensor, Tensor, Tensor]:
    whole, rows, width, how = rows_of(x)
    out, total = torch.empty_like(whole, dtype=torch.int8), torch.empty_like(whole)
    scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    given = whole, residual.contiguous(), weight.contiguous(), out, total, scale
    launch(rms_norm_kernel, (tiles(rows, how["ROWS"]),), *given, rows, width, eps, CODES=True, **how)
    return out, scale, total


@TRITON_KERNELS.register(ops.layer_norm, name="triton_layer_norm", dtypes=FLOATS)
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float) -> Tensor:
    whole, rows, width, how = rows_of(x)
    out = torch.empty_like(whole)
    gain, shift = (None if given is None else given.contiguous() for given in (weight, bias))
    launch(layer_norm_kernel, (tiles(rows, how["ROWS"]),), whole, gain, shift, out, rows, width, eps, **how)
    return out
