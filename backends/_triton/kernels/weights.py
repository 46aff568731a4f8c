"""Reading weights: what kernels share to decode them, and the ops that look values up."""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl

from xinheng.core import ops
from xinheng.core.ir.dtype import DType

from ..._torch.handles import DTYPES, TorchWeight
from ..._torch.plane_part import PlanePart
from ..._torch.planes import SUPER
from ..launch import launch, power, tiles
from .registry import FLOATS, TRITON_KERNELS
from .scalar import device, narrow, widen

Tensor = torch.Tensor

SUPER_COLUMNS = tl.constexpr(SUPER)


@device
def float8(code):
    """Bytes of float8_e4m3fn as float32: shifted to a float16 of 2^-8 their value, which every card has."""
    bits = ((code & 0x80).to(tl.uint16) << 8) | ((code & 0x7F).to(tl.uint16) << 7)
    value = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((code & 0x7F) == 0x7F, float("nan"), value)


@device
def code_at(codes, row, column, there, code_step, CODING: tl.constexpr, RUN: tl.constexpr):
    """The codes at rows and columns as float32; those of four bits one by one."""
    if CODING == "nibbles":
        place = column % (2 * RUN)
        byte = tl.load(codes + row * code_step + column // (2 * RUN) * RUN + place % RUN, there, 0)
        code = tl.where(place < RUN, byte & 15, byte >> 4).to(tl.float32)
    else:
        raw = tl.load(codes + row * code_step + column, there, 0)
        if CODING == "e4m3":
            code = float8(raw)
        elif CODING == "dense":
            code = widen(raw)
        else:
            code = raw.to(tl.float32)
    return code


@device
def decoded(
    code, row, column, there, scale, outer, zero, low, outer_low, scale_step, outer_step,
    GROUP: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """s (q - z) - m of codes q at rows and columns, float32; the codes themselves where there are no scales."""
    if scale is None:
        value = code
    else:
        group = row * scale_step + (column // GROUP if GROUP > 0 else column * 0)
        factor = tl.load(scale + group, there, 0)
        factor = widen(factor) if factor.dtype.is_floating() else factor.to(tl.float32)
        if outer is not None:
            factor *= tl.load(outer + row * outer_step + column // SUPER_COLUMNS, there, 0.0).to(tl.float32)
        if OFFSET != 0:
            code -= OFFSET
        if zero is not None:
            code -= tl.load(zero + group, there, 0).to(tl.float32)
        value = factor * code
        if low is not None:
            least = tl.load(low + group, there, 0).to(tl.float32)
            if outer_low is not None:
                least *= tl.load(outer_low + row * outer_step + column // SUPER_COLUMNS, there, 0.0).to(tl.float32)
            value -= least
    return value


@triton.jit(do_not_specialize=["count", "first"])
def expand_kernel(
    codes, scale, outer, zero, low, outer_low, code_step, scale_step, outer_step, indices, out, count, rows, columns,
    first, out_step,
    CODING: tl.constexpr, GROUP: tl.constexpr, RUN: tl.constexpr, OFFSET: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Values of rows: all of them, or those at `indices` that lie from `first` on in this part."""
    line = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = line.to(tl.int64)
    if indices is not None:
        row = tl.load(indices + line, line < count, -1).to(tl.int64) - first
    there = (line < count) & (row >= 0) & (row < rows) & (column < columns)
    code = code_at(codes, row, column, there, code_step, CODING, RUN)
    value = decoded(code, row, column, there, scale, outer, zero, low, outer_low, scale_step, outer_step, GROUP, OFFSET)
    tl.store(out + line.to(tl.int64) * out_step + column, narrow(value, out.dtype.element_ty), there)


def planes_of(part: PlanePart) -> tuple[Tensor | None, ...]:
    """The planes of a part in the order in which kernels take them."""
    return part.codes, part.scale, part.outer, part.zero, part.low, part.outer_low


def steps_of(part: PlanePart) -> tuple[int, ...]:
    """How far a row of codes, of scales and of outer factors is from the next."""
    return tuple(0 if x is None else x.stride(0) for x in (part.codes, part.scale, part.outer))


def constants_of(part: PlanePart) -> dict[str, Any]:
    """What kernels are compiled for."""
    return {"CODING": part.coding, "GROUP": part.group, "RUN": part.run, "OFFSET": part.offset}


def parts_of(weight: TorchWeight) -> tuple[PlanePart, ...]:
    """The parts of a weight that an accelerator prepared."""
    return cast("tuple[PlanePart, ...]", weight.parts)


def _expand(part: PlanePart, indices: Tensor | None, out: Tensor, first: int) -> None:
    count, block = out.shape[0], power(part.columns, 16, 1024)
    height = max(1, 1024 // block)
    launch(
        expand_kernel, (tiles(count, height), tiles(part.columns, block)), *planes_of(part), *steps_of(part), indices,
        out, count, part.rows, part.columns, first, out.stride(0), ROWS=height, BLOCK=block, **constants_of(part),
    )  # fmt: skip


@TRITON_KERNELS.register(ops.dequantize, name="triton_dequantize", dtypes=FLOATS)
def dequantize(weight: TorchWeight, *, dtype: DType) -> Tensor:
    out = torch.empty(weight.shape, dtype=DTYPES[dtype], device=parts_of(weight)[0].codes.device)
    first = 0
    for part in parts_of(weight):
        _expand(part, None, out[first : first + part.rows], 0)
        first += part.rows
    return out


@TRITON_KERNELS.register(ops.embedding, name="triton_embedding", dtypes=FLOATS)
def embedding(indices: Tensor, weight: TorchWeight, *, dtype: DType) -> Tensor:
    flat = indices.reshape(-1).contiguous()
    out = torch.empty((flat.numel(), weight.shape[1]), dtype=DTYPES[dtype], device=indices.device)
    first = 0
    for part in parts_of(weight):
        _expand(part, flat, out, first)
        first += part.rows
    return out.reshape(*indices.shape, weight.shape[1])
