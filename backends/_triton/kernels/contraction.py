"""Matrix products of tensors, each element added up in one order whatever the number of rows; and products of codes."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from xinheng.core import ops
from xinheng.core.ir.dtype import DType, float8_e4m3fn, float8_e5m2, int8, int16, int32, int64, uint8
from xinheng.core.ir.graph import Node

from ..._torch.handles import DTYPES
from ..launch import launch, tiles
from .registry import FLOATS, TRITON_KERNELS
from .scalar import narrow, product, sum_of, widen
from .weights import float8

Tensor = torch.Tensor


@triton.jit(do_not_specialize=["rows"])
def matmul_kernel(
    a, b, out, rows, columns, terms, a_batch, a_row, a_column, b_batch, b_row, b_column, out_batch,
    KIND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of a b. `KIND` is "float"; "int", whose sums wrap in the dtype of the result; or "byte", into int32."""
    batch = tl.program_id(2).to(tl.int64)
    line = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    place = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    total = tl.full((BLOCK_M, BLOCK_N), 0, tl.float32 if KIND == "float" else out.dtype.element_ty)
    for start in range(0, terms, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        left = tl.load(
            a + batch * a_batch + line[:, None] * a_row + k[None, :] * a_column,
            (line < rows)[:, None] & (k < terms)[None, :], 0,
        )  # fmt: skip
        right = tl.load(
            b + batch * b_batch + k[:, None] * b_row + place[None, :] * b_column,
            (k < terms)[:, None] & (place < columns)[None, :], 0,
        )  # fmt: skip
        if KIND == "float":
            total = product(left, right, total)
        elif KIND == "byte":
            # bytes are float16 numbers, and float32 holds sums of so many of their products
            none = tl.full((BLOCK_M, BLOCK_N), 0, tl.float32)
            total += product(left.to(tl.float16), right.to(tl.float16), none).to(tl.int32)
        else:
            wide = left.to(out.dtype.element_ty)[:, :, None] * right.to(out.dtype.element_ty)[None, :, :]
            total += sum_of(wide, 1).to(out.dtype.element_ty)
    made = narrow(total, out.dtype.element_ty) if KIND == "float" else total
    to = out + batch * out_batch + line[:, None] * columns + place[None, :]
    tl.store(to, made, (line < rows)[:, None] & (place < columns)[None, :])


_TILES: dict[str, dict[str, Any]] = {
    "half": {"KIND": "float", "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64},
    "wide": {"KIND": "float", "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32},
    "byte": {"KIND": "byte", "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 128},
    "int": {"KIND": "int", "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16},
}


def _multiply(a: Tensor, b: Tensor, kind: torch.dtype, how: str) -> Tensor:
    """a [..., rows, terms] times b [..., terms, columns], leading axes broadcast."""
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count = math.prod(lead)
    left, right = (x.expand(*lead, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in (a, b))
    rows, terms, columns = *left.shape[1:], right.shape[-1]
    out, tile = torch.empty((count, rows, columns), dtype=kind, device=a.device), _TILES[how]
    grid = (tiles(rows, tile["BLOCK_M"]), tiles(columns, tile["BLOCK_N"]), count)
    launch(
        matmul_kernel, grid, left, right, out, rows, columns, terms, *left.stride(), *right.stride(), rows * columns,
        **tile,
    )  # fmt: skip
    return out.reshape(*lead, rows, columns)


def _floats(node: Node) -> bool | str:
    kind = node.operands[0]
    return (kind is not None and kind.tensor.dtype in FLOATS) or "multiplies floats only"


@TRITON_KERNELS.register(ops.matmul, name="triton_matmul", dtypes=FLOATS, when=_floats)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return _multiply(a, b, a.dtype, "wide" if a.dtype is torch.float32 else "half")


@TRITON_KERNELS.register(ops.int_matmul, name="triton_int_matmul")
def int_matmul(a: Tensor, b: Tensor) -> Tensor:
    return _multiply(a, b, torch.int32, "byte")


@triton.jit(do_not_specialize=["rows"])
def quant_matmul_kernel(
    x, weight, x_scale, weight_scale, bias, out, rows, columns, terms,
    CODING: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of codes times the transpose of codes, scaled by row and by column; `CODING` is int8, e4m3 or e5m2."""
    line = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    place = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    total = tl.full((BLOCK_M, BLOCK_N), 0, tl.int32 if CODING == "int8" else tl.float32)
    for start in range(0, terms, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        left = tl.load(x + line[:, None] * terms + k[None, :], (line < rows)[:, None] & (k < terms)[None, :], 0)
        right = tl.load(
            weight + place[None, :] * terms + k[:, None], (k < terms)[:, None] & (place < columns)[None, :], 0
        )
        if CODING == "e4m3":
            left, right = float8(left).to(tl.float16), float8(right).to(tl.float16)
        elif CODING == "e5m2":
            left = (left.to(tl.uint16) << 8).to(tl.float16, bitcast=True)
            right = (right.to(tl.uint16) << 8).to(tl.float16, bitcast=True)
        total = product(left, right, total)
    y = total.to(tl.float32) * tl.load(x_scale + line, line < rows, 0.0)[:, None]
    y *= tl.load(weight_scale + place, place < columns, 0.0)[None, :]
    if bias is not None:
        y += widen(tl.load(bias + place, place < columns, 0.0))[None, :]
    to = out + line[:, None] * columns + place[None, :]
    tl.store(to, narrow(y, out.dtype.element_ty), (line < rows)[:, None] & (place < columns)[None, :])


_CODINGS = {torch.int8: "int8", torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


def _coded(node: Node) -> bool | str:
    kinds, kind = (int8, float8_e4m3fn, float8_e5m2), node.operands[0]
    taken = kind is not None and kind.tensor.dtype in kinds and node.attributes["dtype"] in FLOATS
    return taken or "multiplies int8, float8_e4m3fn and float8_e5m2 into float32, float16 and bfloat16"


@TRITON_KERNELS.register(ops.quant_matmul, name="triton_quant_matmul", when=_coded)
def quant_matmul(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None = None, *, dtype: DType
) -> Tensor:
    coding = _CODINGS[x.dtype]
    left, right = x.contiguous(), weight.contiguous()
    if coding != "int8":
        left, right = left.view(torch.uint8), right.view(torch.uint8)
    (rows, terms), columns = x.shape, weight.shape[0]
    out = torch.empty((rows, columns), dtype=DTYPES[dtype], device=x.device)
    launch(
        quant_matmul_kernel, (tiles(rows, 64), tiles(columns, 64)), left, right, x_scale.contiguous(),
        weight_scale.contiguous(), None if bias is None else bias.contiguous(), out, rows, columns, terms,
        CODING=coding, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64,
    )  # fmt: skip
    return out


INTEGERS = frozenset({int64, int32, int16, int8, uint8})
"""What products of integers are made of."""


def _integers(node: Node) -> bool | str:
    kind = node.operands[0]
    return (kind is not None and kind.tensor.dtype in INTEGERS) or "multiplies integers only"


@TRITON_KERNELS.register(ops.matmul, name="triton_integer_matmul", when=_integers)
def integer_matmul(a: Tensor, b: Tensor) -> Tensor:
    return _multiply(a, b, a.dtype, "int")
