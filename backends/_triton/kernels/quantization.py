"""Codes of eight bits: rows with a scale each, and products of codes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from xinheng.core import ops
from xinheng.core.ir.dtype import DType, int8
from xinheng.core.ir.graph import Node

from ..launch import launch, power, tiles
from .registry import FLOATS, TRITON_KERNELS
from .scalar import device, max_of, nearest, widen

Tensor = torch.Tensor

WIDEST = 2048
"""Elements of a row that a program holds at a time."""


def rows_of(x: Tensor) -> tuple[Tensor, int, int, dict[str, int]]:
    """A tensor as contiguous rows, their number and width, and the tile that a program takes of them."""
    whole, width = x.contiguous(), x.shape[-1]
    block = power(width, 16, WIDEST)
    return whole, whole.numel() // max(width, 1), width, {"ROWS": max(1, 1024 // block), "BLOCK": block}


def eight_bit(node: Node) -> bool | str:
    """The codes are int8."""
    return node.attributes["dtype"] is int8 or f"makes codes of int8, not of {node.attributes['dtype']}"


@device
def divisor_of(top):
    """The scales of rows of which `top` holds the magnitudes [rows, columns]: 1 for rows of zeros."""
    highest = max_of(top, 1)
    return tl.where(highest > 0, tl.div_rn(highest, 127.0), 1.0)


@device
def coded(value, divisor):
    """Numbers [rows, columns] as codes of eight bits, by the scales of their rows."""
    code = tl.minimum(tl.maximum(nearest(tl.div_rn(value, divisor[:, None])), -127.0), 127.0)
    return code.to(tl.int8)


@triton.jit(do_not_specialize=["rows"])
def dynamic_quant_kernel(x, out, scale, rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows as codes of eight bits, with a scale each."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    base = row.to(tl.int64)[:, None] * width
    top = tl.full((ROWS, BLOCK), 0, tl.float32)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & (column < width)[None, :]
        top = tl.maximum(top, tl.abs(widen(tl.load(x + base + column[None, :], there, 0.0))))
    divisor = divisor_of(top)
    tl.store(scale + row, divisor, row < rows)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & (column < width)[None, :]
        value = widen(tl.load(x + base + column[None, :], there, 0.0))
        tl.store(out + base + column[None, :], coded(value, divisor), there)


@TRITON_KERNELS.register(ops.dynamic_quant, name="triton_dynamic_quant", dtypes=FLOATS, when=eight_bit)
def dynamic_quant(x: Tensor, *, dtype: DType = int8) -> tuple[Tensor, Tensor]:
    whole, rows, width, how = rows_of(x)
    out = torch.empty_like(whole, dtype=torch.int8)
    scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    launch(dynamic_quant_kernel, (tiles(rows, how["ROWS"]),), whole, out, scale, rows, width, **how)
    return out, scale
