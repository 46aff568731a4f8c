"""Products with quantised operands: W8A8 with a scale per token, and weights of 4 and 8 bits with groups."""

from __future__ import annotations

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import DType, int8
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import TensorType

from ...._torch.handles import DTYPES, TorchWeight
from ...._torch.plane_part import PlanePart
from ..grouped import ROWS, scale_dtype
from ..handles import NPUWeight
from .conditions import FLOATS, HALVES, filled, shaped, weight_of

Tensor = torch.Tensor
INNER = 65535
"""The longest axis of a product."""
GATED = 8192
"""The most numbers of a row for `npu_swiglu_quant`."""
DYNAMIC = 1
"""Its `quant_mode` with a scale per token that the run finds."""
_CODES = {torch.float16: 5, torch.bfloat16: 15}
"""Torch's numbers of dtypes, which is how an argument of kind int names one."""


ROWED = "int8_row"
"""The scheme of W8A8 weights: signed bytes with a scale per row, a channel of the result."""


def register_quantization(kernels: KernelRegistry, fast: bool) -> None:
    """Enter the kernels of generations with quantised products; `fast` admits rounding activations to int8."""
    _register_fused(kernels)
    if fast:
        kernels.register(ops.linear, name="npu_quant_matmul", dtypes=HALVES, when=_rowed, priority=1)(_eight_bit)

    @kernels.register(ops.dynamic_quant, name="npu_dynamic_quant", dtypes=HALVES, when=_by_token)
    def dynamic_quant(x: Tensor, *, dtype: DType = int8) -> tuple[Tensor, Tensor]:
        return _defined(*torch.ops.npu.npu_dynamic_quant(x))

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


def _register_fused(kernels: KernelRegistry) -> None:
    """Norms and gates whose results are codes in the same operator."""

    @kernels.register(
        ops.add_rms_norm_quant, name="npu_add_rms_norm_dynamic_quant", dtypes=HALVES, when=_by_token, priority=1
    )
    def add_rms_norm_quant(
        x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, dtype: DType = int8
    ) -> tuple[Tensor, Tensor, Tensor]:
        codes, _, total, scale, _ = torch.ops.npu.npu_add_rms_norm_dynamic_quant(x, residual, weight, epsilon=eps)
        return *_defined(codes, scale), total

    @kernels.register(ops.silu_and_mul_quant, name="npu_swiglu_quant", dtypes=FLOATS, when=_gated, priority=1)
    def silu_and_mul_quant(gate: Tensor, up: Tensor, *, dtype: DType = int8) -> tuple[Tensor, Tensor]:
        pair = torch.cat((gate, up), -1)
        return _defined(*torch.ops.npu.npu_swiglu_quant(pair, activate_left=True, quant_mode=DYNAMIC))


def _defined(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales [..., 1]: a row of zeros has the scale 0 there, and what its codes are is not said."""
    empty = (scale == 0)[..., None]
    return codes.masked_fill(empty, 0), scale[..., None].masked_fill(empty, 1.0)


def _eight_bit(x: Tensor, weight: TorchWeight, bias: Tensor | None = None) -> Tensor:
    """W8A8: activations become int8 with a scale per token; products of codes are exact, and scaled in float32."""
    codes, scale = torch.ops.npu.npu_dynamic_quant(x.reshape(-1, x.shape[-1]).contiguous())
    # what codes a row of zeros has is not said, but its scale is 0, and so are its products
    first, pieces = 0, []
    for part in weight.parts:
        assert isinstance(part, PlanePart) and part.scale is not None
        for start in range(0, part.rows, ROWS):
            rows = slice(start, min(start + ROWS, part.rows))
            last = first + rows.stop - rows.start
            pieces.append(
                torch.ops.npu.npu_quant_matmul(
                    codes,
                    part.codes[rows].transpose(0, 1),
                    part.scale[rows, 0].contiguous(),
                    pertoken_scale=scale,
                    bias=None if bias is None else bias[first:last].contiguous(),
                    output_dtype=_CODES[x.dtype],
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


def _gated(node: Node) -> bool | str:
    gate, up = shaped(node, "gate"), shaped(node, "up")
    if node.attributes["dtype"] != int8:
        return f"makes codes of int8, not {node.attributes['dtype']}"
    if gate != up or len(gate) < 2:
        return "takes a gate and a factor of one shape of two axes or more"
    width = gate[-1]
    if not isinstance(width, int) or not 0 < 2 * width <= GATED:
        return f"takes rows of gate and factor together of up to {GATED} numbers, not {width} each"
    return filled(*node.operands) or "does not take empty tensors"


def _rowed(node: Node) -> bool | str:
    x, kind = node.operand("x"), weight_of(node)
    other = [name for name, _ in kind.parts if name != ROWED]
    if other:
        return f"multiplies weights of {ROWED}, not {other[0]}"
    if kind.shape[1] > INNER:
        return f"takes weights of at most {INNER} columns, not {kind.shape[1]}"
    return filled(x) or "does not take empty tensors"


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
