"""Gated activations, alone and with codes of eight bits as their result."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from xinheng.core import ops
from xinheng.core.ir.dtype import DType, int8

from ..launch import launch, power, tiles
from .quantization import coded, divisor_of, eight_bit, rows_of
from .registry import FLOATS, TRITON_KERNELS
from .scalar import device, narrow, sigmoid, silu, widen

Tensor = torch.Tensor


@device
def activated(gate, ACTIVATION: tl.constexpr):
    """silu, gelu by erf, or gelu by tanh of float32 numbers."""
    if ACTIVATION == "silu":
        return silu(gate)
    if ACTIVATION == "tanh":
        # (1 + tanh y) / 2 = sigmoid(2 y), which does not cancel
        inner = 0.7978845608028654 * (gate + 0.044715 * (gate * gate * gate))
        return gate * sigmoid(2.0 * inner)
    return 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))


@triton.jit(do_not_specialize=["size"])
def gated_kernel(gate, up, out, size, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """Activation of gate times up, element by element."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    a = activated(widen(tl.load(gate + at, there, 0.0)), ACTIVATION)
    b = widen(tl.load(up + at, there, 0.0))
    tl.store(out + at, narrow(a * b, out.dtype.element_ty), there)


@triton.jit(do_not_specialize=["rows"])
def gated_quant_kernel(gate, up, out, scale, rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """silu(gate) up as codes of eight bits, with a scale per row."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    base = row.to(tl.int64)[:, None] * width
    top = tl.full((ROWS, BLOCK), 0, tl.float32)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & (column < width)[None, :]
        a = silu(widen(tl.load(gate + base + column[None, :], there, 0.0)))
        top = tl.maximum(top, tl.abs(a * widen(tl.load(up + base + column[None, :], there, 0.0))))
    divisor = divisor_of(top)
    tl.store(scale + row, divisor, row < rows)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & (column < width)[None, :]
        a = silu(widen(tl.load(gate + base + column[None, :], there, 0.0)))
        b = widen(tl.load(up + base + column[None, :], there, 0.0))
        tl.store(out + base + column[None, :], coded(a * b, divisor), there)


def gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """The activation of gate times up, which are broadcast."""
    left, right = (x.contiguous() for x in torch.broadcast_tensors(gate, up))
    out, size = torch.empty_like(left), left.numel()
    block = power(size, 16, 1024)
    launch(gated_kernel, (tiles(size, block),), left, right, out, size, ACTIVATION=activation, BLOCK=block)
    return out


@TRITON_KERNELS.register(ops.silu_and_mul, name="triton_silu_and_mul", dtypes=FLOATS)
def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    return gated(gate, up, "silu")


@TRITON_KERNELS.register(ops.gelu_and_mul, name="triton_gelu_and_mul", dtypes=FLOATS)
def gelu_and_mul(gate: Tensor, up: Tensor, *, approximate: str = "none") -> Tensor:
    return gated(gate, up, "tanh" if approximate == "tanh" else "erf")


@TRITON_KERNELS.register(ops.silu_and_mul_quant, name="triton_silu_and_mul_quant", dtypes=FLOATS, when=eight_bit)
def silu_and_mul_quant(gate: Tensor, up: Tensor, *, dtype: DType = int8) -> tuple[Tensor, Tensor]:
    whole, rows, width, how = rows_of(gate)
    out = torch.empty_like(whole, dtype=torch.int8)
    scale = torch.empty((*gate.shape[:-1], 1), dtype=torch.float32, device=gate.device)
    grid = (tiles(rows, how["ROWS"]),)
    launch(gated_quant_kernel, grid, whole, up.expand_as(gate).contiguous(), out, scale, rows, width, **how)
    return out, scale
