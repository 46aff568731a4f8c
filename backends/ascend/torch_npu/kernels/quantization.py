"""Products with quantised operands: W8A8 with a scale per token, and weights of 4 and 8 bits with groups."""

from __future__ import annotations

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import DType, int8
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import TensorType

from ...._torch.handles import DTYPES
from ..grouped import scale_dtype
from ..handles import NPUWeight
from .conditions import HALVES, filled, shaped, weight_of

Tensor = torch.Tensor
INNER = 65535
"""The longest axis of a product."""
_CODES = {torch.float16: 5, torch.bfloat16: 15}
"""Torch's numbers of dtypes, which is how an argument of kind int names one."""


def register_quantization(kernels: KernelRegistry) -> None:
    """Enter the kernels of generations with quantised products."""

    @kernels.register(ops.dynamic_quant, name="npu_dynamic_quant", dtypes=HALVES, when=_by_token)
    def dynamic_quant(x: Tensor, *, dtype: DType = int8) -> tuple[Tensor, Tensor]:
        codes, scale = torch.ops.npu.npu_dynamic_quant(x)
        # a row of zeros has the scale 0 there, and what its codes are is not said
        empty = (scale == 0)[..., None]
        return codes.masked_fill(empty, 0), scale[..., None].masked_fill(empty, 1.0)

    @kernels.register(ops.quant_matmul, name="npu_quant_matmul", when=_w8a8)
    def quant_matmul(
        x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None = None, *, dtype: DType
    ) -> Tensor:
        made: Tensor = torch.ops.npu.npu_quant_matmul(
            x.contiguous(),
            weight.contiguous().transpose(0, 1),
            weight_scale.contiguous(),
            pertoken_scale=x_scale.reshape(-1).contiguous(),
            bias=None if bias is None else bias.contiguous(),
            output_dtype=_CODES[DTYPES[dtype]],
        )
        return made

    @kernels.register(ops.linear, name="npu_weight_quant_batchmatmul", dtypes=HALVES, when=_grouped)
    def linear(x: Tensor, weight: NPUWeight, bias: Tensor | None = None) -> Tensor:
        flat, first, pieces = x.reshape(-1, x.shape[-1]), 0, []
        for rows in weight.fused:
            last = first + rows.scale.shape[1]
            added = None if bias is None else bias[first:last]
            if added is not None and added.dtype is torch.bfloat16:
                added = added.float()
            pieces.append(
                torch.ops.npu.npu_weight_quant_batchmatmul(
                    flat, rows.codes, rows.scale, rows.offset, bias=added, antiquant_group_size=rows.group
                )
            )
            first = last
        made = pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)
        return made.reshape(*x.shape[:-1], weight.shape[0])


def _by_token(node: Node) -> bool | str:
    if node.attributes["dtype"] != int8:
        return f"makes codes of int8, not {node.attributes['dtype']}"
    rank = len(shaped(node, "x"))
    if rank < 2:
        return f"takes two axes or more, not {rank}"
    return filled(*node.operands) or "does not take empty tensors"


def _w8a8(node: Node) -> bool | str:
    x, kind = node.operand("x"), node.attributes["dtype"]
    assert x is not None
    if x.dtype != int8 or kind not in HALVES:
        return f"multiplies int8 to float16 or bfloat16, not {x.dtype} to {kind}"
    sizes = (*shaped(node, "weight"), shaped(node, "x")[1])
    if not all(isinstance(size, int) and size <= INNER for size in sizes):
        return f"takes axes of at most {INNER}, not {sizes}"
    return filled(*node.operands) or "does not take empty tensors"


def _grouped(node: Node) -> bool | str:
    x, kind = node.operand("x"), weight_of(node)
    assert x is not None and isinstance(x.type, TensorType)
    for name, rows in kind.parts:
        wanted = scale_dtype(name, rows, kind.shape[1])
        if isinstance(wanted, str):
            return wanted
        if wanted != x.dtype:
            return f"scales of {name} are {wanted}, which must be the dtype of activations, {x.dtype}"
    return filled(x) or "does not take empty tensors"
