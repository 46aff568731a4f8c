"""Norms, gated activations and rotary embedding."""

from __future__ import annotations

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.graph import Node

from ...chips import Chip
from .conditions import FLOATS, filled, shaped

Tensor = torch.Tensor
ROTARY_LIMIT = 896
"""Heads must be narrower than this for `npu_rotary_mul`, and batch times heads below `ROTARY_HEADS`."""
ROTARY_HEADS = 1000


def register_nn(kernels: KernelRegistry, chip: Chip) -> None:
    """Enter the kernels of a generation."""

    @kernels.register(ops.rms_norm, name="npu_rms_norm", dtypes=FLOATS, when=_matrix)
    def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        made: Tensor = torch.ops.npu.npu_rms_norm(x, weight, eps)[0]
        return made

    def pairs(node: Node) -> bool | str:
        return _pairs(node, 2 if chip.fused else 32)

    @kernels.register(ops.silu_and_mul, name="npu_swiglu", dtypes=FLOATS, when=pairs)
    def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
        made: Tensor = torch.ops.npu.npu_swiglu(torch.cat((gate, up), -1), -1)
        return made

    if chip.fused:
        _register_fused(kernels)


def _register_fused(kernels: KernelRegistry) -> None:
    @kernels.register(ops.add_rms_norm, name="npu_add_rms_norm", dtypes=FLOATS, when=_matrix)
    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
        normed, _, total = torch.ops.npu.npu_add_rms_norm(x, residual, weight, eps)
        return normed, total

    @kernels.register(ops.rotary_embedding, name="npu_rotary_mul", dtypes=FLOATS, when=_rotatable)
    def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
        # the operator wants tables of the dtype of x, and angles rounded to 16 bits would be other angles
        width = 2 * cos.shape[-1]
        turned, rest = x[..., :width].float().contiguous(), x[..., width:]
        tables = (_spread(table, interleaved) for table in (cos, sin))
        mode = "interleave" if interleaved else "half"
        made: Tensor = torch.ops.npu.npu_rotary_mul(turned[:, None], *tables, mode)[:, 0].to(x.dtype)
        return torch.cat((made, rest), -1) if rest.shape[-1] else made


def _spread(table: Tensor, interleaved: bool) -> Tensor:
    """cos or sin [tokens, r / 2] as S11D, one number for each of the r elements of a head."""
    wide = table.repeat_interleave(2, -1) if interleaved else torch.cat((table, table), -1)
    return wide[:, None, None]


def _matrix(node: Node) -> bool | str:
    rank = len(shaped(node, "x"))
    if not filled(*node.operands):
        return "does not take empty tensors"
    return 2 <= rank <= 8 or f"takes 2 to 8 axes, not {rank}"


def _pairs(node: Node, multiple: int) -> bool | str:
    gate, up = shaped(node, "gate"), shaped(node, "up")
    if gate != up or not 1 <= len(gate) <= 8:
        return "takes a gate and a factor of one shape of 1 to 8 axes"
    width = gate[-1]
    if not isinstance(width, int) or not width or 2 * width % multiple:
        return f"takes rows of gate and factor together that are a multiple of {multiple}, not {width} each"
    return filled(*node.operands) or "does not take empty tensors"


def _rotatable(node: Node) -> bool | str:
    _, heads, _ = shaped(node, "x")
    half = shaped(node, "cos")[-1]
    if not isinstance(half, int) or not isinstance(heads, int):
        return "takes heads of a fixed number and width"
    if not 0 < 2 * half < ROTARY_LIMIT or heads >= ROTARY_HEADS:
        return (
            f"takes up to {ROTARY_LIMIT - 2} turned elements and {ROTARY_HEADS - 1} heads, not {2 * half} and {heads}"
        )
    return filled(*node.operands) or "does not take empty tensors"
