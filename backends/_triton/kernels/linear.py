"""Products with weights, dense or packed: of all rows, of the rows of each group, and of each head.

A program makes a tile of the result and adds its terms up in one order, which depends on nothing but the columns of the
weight and the dtype: not on the number of rows, nor on which row of a tile it is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from xinheng.core import ops
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import WeightType

from ..._torch.handles import TorchWeight
from ..._torch.plane_part import PlanePart
from ..launch import launch, tiles
from .registry import FLOATS, TRITON_KERNELS
from .scalar import device, narrow, product, widen
from .weights import code_at, constants_of, decoded, parts_of, planes_of, steps_of

Tensor = torch.Tensor


@device
def group_of(starts, groups, tile, BLOCK_M: tl.constexpr):
    """The group that the tile belongs to: groups follow each other in tiles of their own, one more than they fill."""
    low, high = 0, groups
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts + middle) // BLOCK_M + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@device
def source_of(taken, line, used, choices):
    """The rows of x that lines of the result are made from."""
    source = line.to(tl.int64)
    if taken is not None:
        source = (tl.load(taken + line, used, 0) // choices).to(tl.int64)
    return source


@device
def matched(x, weight, total, WIDE: tl.constexpr):
    """total plus a tile of x times the transpose of a tile of a weight, in the dtype of x unless `WIDE`."""
    if WIDE:
        return product(widen(x), tl.trans(weight), total)
    return product(x, tl.trans(narrow(weight, x.dtype)), total)


@triton.jit(do_not_specialize=["count", "groups", "choices"])
def linear_kernel(
    x, codes, scale, outer, zero, low, outer_low, bias, out, starts, taken,
    code_step, scale_step, outer_step, count, rows, columns, groups, choices, x_step, x_head, out_step, out_head,
    CODING: tl.constexpr, GROUP: tl.constexpr, RUN: tl.constexpr, OFFSET: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of [count, columns] times the transpose of [rows, columns].

    With `starts` [groups + 1] the rows of x belong to groups, each with `rows` rows of the weight; with `taken` row i
    is row taken[i] // choices of x. The third axis of the grid are heads with weights of their own.
    """
    tile, head = tl.program_id(0), tl.program_id(2).to(tl.int64)
    begin, end, group = 0, count, head
    if starts is not None:
        owner = group_of(starts, groups, tile, BLOCK_M)
        begin, end, group = tl.load(starts + owner), tl.load(starts + owner + 1), owner.to(tl.int64)
        tile -= begin // BLOCK_M + owner
    line = begin + tile * BLOCK_M + tl.arange(0, BLOCK_M)
    if begin + tile * BLOCK_M < end:
        used = line < end
        at = x + head * x_head + source_of(taken, line, used, choices)[:, None] * x_step
        place = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        row = group * rows + place[:, None].to(tl.int64)
        inside = (place < rows)[:, None]
        total = tl.full((BLOCK_M, BLOCK_N), 0, tl.float32)
        if CODING == "nibbles":
            for start in range(0, columns // 2, BLOCK_K):
                byte = start + tl.arange(0, BLOCK_K)
                first = (byte // RUN * (2 * RUN) + byte % RUN)[None, :]
                there = inside & (byte < columns // 2)[None, :]
                raw = tl.load(codes + row * code_step + byte[None, :], there, 0)
                for half in tl.static_range(2):
                    column = first + half * RUN
                    code = ((raw >> (4 * half)) & 15).to(tl.float32)
                    weight = decoded(
                        code, row, column, there, scale, outer, zero, low, outer_low, scale_step, outer_step,
                        GROUP, OFFSET,
                    )  # fmt: skip
                    part = tl.load(at + column, used[:, None] & (column < columns), 0.0)
                    total = matched(part, weight, total, WIDE)
        else:
            for start in range(0, columns, BLOCK_K):
                column = (start + tl.arange(0, BLOCK_K))[None, :]
                there = inside & (column < columns)
                part = tl.load(at + column, used[:, None] & (column < columns), 0.0)
                if CODING == "dense" and not WIDE:
                    same = tl.load(codes + row * code_step + column, there, 0.0)
                    total = product(part, tl.trans(same), total)
                else:
                    code = code_at(codes, row, column, there, code_step, CODING, RUN)
                    weight = decoded(
                        code, row, column, there, scale, outer, zero, low, outer_low, scale_step, outer_step,
                        GROUP, OFFSET,
                    )  # fmt: skip
                    total = matched(part, weight, total, WIDE)
        if bias is not None:
            total += widen(tl.load(bias + place, place < rows, 0.0))[None, :]
        to = out + head * out_head + line.to(tl.int64)[:, None] * out_step + place[None, :]
        tl.store(to, narrow(total, out.dtype.element_ty), used[:, None] & (place < rows)[None, :])


@triton.jit(do_not_specialize=["count"])
def transposed_kernel(
    x, codes, scale, outer, zero, low, outer_low, out,
    code_step, scale_step, outer_step, count, rows, columns, x_step, x_head, out_step, out_head,
    CODING: tl.constexpr, GROUP: tl.constexpr, RUN: tl.constexpr, OFFSET: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of [count, rows] times [rows, columns], for each head on the third axis of the grid."""
    head = tl.program_id(2).to(tl.int64)
    line = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N))[:, None]
    total = tl.full((BLOCK_M, BLOCK_N), 0, tl.float32)
    for start in range(0, rows, BLOCK_K):
        place = (start + tl.arange(0, BLOCK_K))[None, :]
        row = head * rows + place.to(tl.int64)
        there = (place < rows) & (column < columns)
        code = code_at(codes, row, column, there, code_step, CODING, RUN)
        weight = decoded(
            code, row, column, there, scale, outer, zero, low, outer_low, scale_step, outer_step, GROUP, OFFSET
        )
        at = x + head * x_head + line.to(tl.int64)[:, None] * x_step + place
        part = tl.load(at, (line < count)[:, None] & (place < rows), 0.0)
        total = matched(part, tl.where(there, weight, 0.0), total, WIDE)
    to = out + head * out_head + line.to(tl.int64)[:, None] * out_step + tl.trans(column)
    tl.store(to, narrow(total, out.dtype.element_ty), (line < count)[:, None] & (tl.trans(column) < columns))


def tile_of(x: Tensor, part: PlanePart) -> dict[str, int | bool]:
    """The tile of a program: the same for any number of rows, so that a row has the same bits in any company."""
    wide = x.dtype is torch.float32 or (part.dense and part.codes.dtype is not x.dtype)
    if wide:
        return {"WIDE": True, "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32}
    return {"WIDE": False, "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32 if part.coding == "nibbles" else 64}


def multiply(
    x: Tensor,
    part: PlanePart,
    bias: Tensor | None,
    out: Tensor,
    starts: Tensor | None = None,
    taken: Tensor | None = None,
    choices: int = 1,
) -> None:
    """Rows of x [count, columns] times the rows of a part, into out [count, rows]; by group if `starts` are given."""
    how = tile_of(x, part)
    count, groups = out.shape[0], 0 if starts is None else starts.numel() - 1
    rows = part.rows // groups if groups else part.rows
    lines = tiles(count, how["BLOCK_M"]) if starts is None else count // how["BLOCK_M"] + groups
    launch(
        linear_kernel, (lines, tiles(rows, how["BLOCK_N"]), 1), x, *planes_of(part), bias, out, starts, taken,
        *steps_of(part), count, rows, part.columns, groups, choices, x.stride(0), 0, out.stride(0), 0,
        **constants_of(part), **how,
    )  # fmt: skip


@TRITON_KERNELS.register(ops.linear, name="triton_linear", dtypes=FLOATS)
def linear(x: Tensor, weight: TorchWeight, bias: Tensor | None = None) -> Tensor:
    rows, columns = weight.shape
    flat = x.reshape(-1, columns).contiguous()
    out = torch.empty((flat.shape[0], rows), dtype=x.dtype, device=x.device)
    first = 0
    for part in parts_of(weight):
        last = first + part.rows
        multiply(flat, part, None if bias is None else bias.contiguous()[first:last], out[:, first:last])
        first = last
    return out.reshape(*x.shape[:-1], rows)


def one_part(node: Node) -> bool | str:
    """All rows of the weights have one scheme."""
    kinds = [v.type for v in node.operands if v is not None and isinstance(v.type, WeightType)]
    return all(len(kind.parts) == 1 for kind in kinds) or "reads stacks of one scheme only"


@TRITON_KERNELS.register(ops.batched_linear, name="triton_batched_linear", dtypes=FLOATS, when=one_part)
def batched_linear(x: Tensor, weight: TorchWeight, *, transposed: bool = False) -> Tensor:
    (part,), (heads, rows, columns) = parts_of(weight), weight.shape
    whole, (count, _, width) = x.contiguous(), x.shape
    made = columns if transposed else rows
    out, how = torch.empty((count, heads, made), dtype=x.dtype, device=x.device), tile_of(x, part)
    grid = (tiles(count, how["BLOCK_M"]), tiles(made, how["BLOCK_N"]), heads)
    steps = heads * width, width, heads * made, made
    if transposed:
        launch(
            transposed_kernel, grid, whole, *planes_of(part), out, *steps_of(part), count, rows, columns, *steps,
            **constants_of(part), **how,
        )  # fmt: skip
    else:
        launch(
            linear_kernel, grid, whole, *planes_of(part), None, out, None, None, *steps_of(part), count, rows, columns,
            heads, 1, *steps, **constants_of(part), **how,
        )  # fmt: skip
    return out


def starts_of(counts: Tensor) -> Tensor:
    """Where groups of rows begin and end, int32 [groups + 1]."""
    zero = torch.zeros(1, dtype=torch.int32, device=counts.device)
    return torch.cat((zero, torch.cumsum(counts, 0, dtype=torch.int32)))


@TRITON_KERNELS.register(ops.grouped_linear, name="triton_grouped_linear", dtypes=FLOATS, when=one_part)
def grouped_linear(x: Tensor, weight: TorchWeight, counts: Tensor) -> Tensor:
    out = torch.empty((x.shape[0], weight.shape[1]), dtype=x.dtype, device=x.device)
    multiply(x.contiguous(), parts_of(weight)[0], None, out, starts_of(counts))
    return out
