"""Doubles of products and of codes, in the names of both releases."""

from __future__ import annotations

import torch

from ..._torch.emulation import require
from ..chips import CODE_GROUPS, Chip
from .nn import activated
from .rules import FLOATS, HALVES, Tensor, floats


def matmul(
    a: Tensor, b: Tensor, bias: Tensor | None = None, c: Tensor | None = None, act_mode: str = "none",
    alpha: float = 1.0, beta: float = 0.0, *, chip: Chip,
) -> Tensor:  # fmt: skip
    """act(alpha a bT + bias + beta c) of a [m, k] and b [n, k]."""
    floats("matmul", chip, {"a": a, "b": b, "bias": bias, "c": c})
    require(a.dim() == b.dim() == 2 and a.shape[1] == b.shape[1], "matmul", "a is [m, k], b is [n, k]")
    made = _ended(a.double() @ b.double().T * alpha, bias, c, beta)
    return activated("matmul", made, act_mode, False).to(a.dtype)


def _ended(product: Tensor, bias: Tensor | None, c: Tensor | None, beta: float) -> Tensor:
    made = product if bias is None else product + bias.double()
    return made if c is None else made + beta * c.double()


def scaled_matmul(
    a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor, output_dtype: torch.dtype,
    bias: Tensor | None = None, c: Tensor | None = None, act_mode: str = "none", quant_bit_size: int = 8,
    alpha: float = 1.0, beta: float = 1.0, *, chip: Chip,
) -> Tensor:  # fmt: skip
    """Codes or floats times codes, scaled by row and by column or group (new releases)."""
    op = "scaled_matmul"
    if a.dtype is not torch.int8:
        require(a_scale is None and output_dtype is a.dtype, op, "floats have no a_scale and keep their type")
        return _weight_only(op, chip, a, b, b_scale, bias, c, act_mode, quant_bit_size, alpha, beta)
    require(quant_bit_size == 8, op, "the double takes codes of 8 bits")
    return _codes_product(op, chip, a, a_scale, b, b_scale, output_dtype, bias, c, act_mode, alpha, beta)


def weight_only_quant_matmul(
    a: Tensor, b: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None,
    c: Tensor | None = None, act_mode: str = "none", quant_bit_size: int = 8, alpha: float = 1.0, beta: float = 1.0,
    *, chip: Chip,
) -> Tensor:  # fmt: skip
    """Floats times codes (old releases)."""
    op = "weight_only_quant_matmul"
    require(zero is None, op, "zero is not supported")
    return _weight_only(op, chip, a, b, scale, bias, c, act_mode, quant_bit_size, alpha, beta)


def _weight_only(
    op: str, chip: Chip, a: Tensor, b: Tensor, scale: Tensor, bias: Tensor | None, c: Tensor | None, act_mode: str,
    bits: int, alpha: float, beta: float,
) -> Tensor:  # fmt: skip
    floats(op, chip, {"a": a, "bias": bias, "c": c}, HALVES)
    require(a.dim() == b.dim() == 2, op, "a is [m, k], b is [n, k]")
    require(b.dtype is torch.int8 and b.is_contiguous() and scale.is_contiguous(), op, "codes are contiguous int8")
    require(bits in (4, 8), op, f"codes have 4 or 8 bits, not {bits}")
    columns = a.shape[1]
    require(b.shape[1] == columns * bits // 8, op, f"b has {b.shape[1]} bytes in a row for {columns} columns")
    codes = b.double()
    if bits == 4:  # the even column in the low half, both signed
        wide = b.to(torch.int32)
        codes = torch.stack((((wide & 15) ^ 8) - 8, wide >> 4), -1).flatten(1).double()
    if scale.dim() == 1:
        require(scale.dtype is torch.float32 and scale.shape == b.shape[:1], op, "a scale per row is float32 [n]")
        values = codes * scale.double()[:, None]
    else:
        require(scale.dtype is a.dtype and scale.shape[0] == b.shape[0], op, "scales of groups are [n, groups] like a")
        group = columns // scale.shape[1]
        require(group in CODE_GROUPS and group * scale.shape[1] == columns, op, f"there are no groups of {group}")
        require(act_mode == "none", op, "groups have no activation")
        values = (codes.view(b.shape[0], -1, group) * scale.double()[..., None]).view(b.shape[0], columns)
    made = _ended(a.double() @ values.T * alpha, bias, c, beta)
    return activated(op, made, act_mode, False).to(a.dtype)


def smooth_quant_matmul(
    a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, dtype: torch.dtype, bias: Tensor | None = None,
    c: Tensor | None = None, act_mode: str = "none", alpha: float = 1.0, beta: float = 1.0, *, chip: Chip,
) -> Tensor:  # fmt: skip
    """The same (old releases), the scale of a before b."""
    return _codes_product("smooth_quant_matmul", chip, a, a_scale, b, b_scale, dtype, bias, c, act_mode, alpha, beta)


def _codes_product(
    op: str, chip: Chip, a: Tensor, a_scale: Tensor | None, b: Tensor, b_scale: Tensor, kind: torch.dtype,
    bias: Tensor | None, c: Tensor | None, act_mode: str, alpha: float, beta: float,
) -> Tensor:  # fmt: skip
    require(
        a.dtype is torch.int8 is b.dtype and a.is_contiguous() and b.is_contiguous(), op, "codes are contiguous int8"
    )
    require(
        a_scale is not None and a_scale.dtype is torch.float32 and a_scale.shape == a.shape[:1],
        op,
        "a_scale is float32 [m]",
    )
    require(b_scale.dtype is torch.float32 and b_scale.shape == b.shape[:1], op, "b_scale is float32 [n]")
    require(
        kind in HALVES and (chip.bfloat16 or kind is not torch.bfloat16), op, f"results cannot be {kind} on {chip.name}"
    )
    require(bias is None or bias.dtype is kind, op, "bias must be of the type of the result")
    assert a_scale is not None
    product = a.double() @ b.double().T * a_scale.double()[:, None] * b_scale.double()
    return activated(op, _ended(product * alpha, bias, c, beta), act_mode, False).to(kind)


def scaled_quantize(
    input: Tensor, scale: Tensor | None = None, zero: Tensor | None = None, scale_ub: Tensor | None = None,
    quant_type: torch.dtype = torch.int8, quant_mode: str = "dynamic_per_token", *, chip: Chip,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Codes of each row and its scale, after `scale` multiplied its elements (new releases)."""
    op = "scaled_quantize"
    require(zero is None, op, "zero is not supported")
    require(quant_type is torch.int8 and quant_mode == "dynamic_per_token", op, "the double makes int8 per token")
    return _coded(op, chip, input, scale)


def per_token_smooth_quantize(
    x: Tensor, smooth: Tensor, zero: Tensor | None = None, *, chip: Chip
) -> tuple[Tensor, Tensor]:
    """The same (old releases); `smooth` is required."""
    require(zero is None, "per_token_smooth_quantize", "zero is not supported")
    return _coded("per_token_smooth_quantize", chip, x, smooth)


def _coded(op: str, chip: Chip, x: Tensor, smooth: Tensor | None) -> tuple[Tensor, Tensor]:
    floats(op, chip, {"input": x}, FLOATS)
    require(
        smooth is None or (smooth.dtype is torch.float32 and smooth.shape == x.shape[-1:]),
        op,
        "scale is float32 [width]",
    )
    wide = x.float() if smooth is None else x.float() * smooth
    scale = wide.abs().amax(-1) / 127
    codes = torch.round(wide / torch.where(scale > 0, scale, 1.0)[..., None]).clamp(-128, 127).to(torch.int8)
    return codes, scale
