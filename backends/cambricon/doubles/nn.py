"""Doubles of norms, rotary embedding and activations."""

from __future__ import annotations

import torch

from ..._torch.emulation import require
from ..chips import ROTARY_HEAD, Chip
from .rules import Tensor, floats


def fused_rms_norm(
    x: Tensor, residual: Tensor | None, gamma: Tensor, beta: Tensor | None, bias: Tensor | None, eps: float,
    store_output_before_norm: bool, quant_scale: Tensor | None = None, out: Tensor | None = None,
    dynamic_quant: bool = False, *, chip: Chip,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """norm(x + bias + residual) by the root mean square, and the sum before it if asked for."""
    op = "fused_rms_norm"
    require(
        quant_scale is None and not dynamic_quant and beta is None, op, "the double has no quantised results, no beta"
    )
    total = _sum(op, chip, x, residual, gamma, beta, bias)
    made = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * gamma.double()
    return _normed(made, total, x, out, store_output_before_norm)


def fused_layer_norm(
    x: Tensor, residual: Tensor | None, gamma: Tensor | None, beta: Tensor | None, bias: Tensor | None, eps: float,
    store_output_before_norm: bool, quant_scale: Tensor | None = None, out: Tensor | None = None,
    dynamic_quant: bool = False, *, chip: Chip,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The same by mean and variance."""
    op = "fused_layer_norm"
    require(quant_scale is None and not dynamic_quant, op, "the double has no quantised results")
    total = _sum(op, chip, x, residual, gamma, beta, bias)
    centred = total - total.mean(-1, keepdim=True)
    made = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    made = made if gamma is None else made * gamma.double()
    made = made if beta is None else made + beta.double()
    return _normed(made, total, x, out, store_output_before_norm)


def _sum(
    op: str, chip: Chip, x: Tensor, residual: Tensor | None, gamma: Tensor | None, beta: Tensor | None,
    bias: Tensor | None,
) -> Tensor:  # fmt: skip
    floats(op, chip, {"x": x, "residual": residual, "gamma": gamma, "beta": beta, "bias": bias})
    require(residual is None or residual.shape == x.shape, op, "residual must be of the shape of x")
    for name, t in (("gamma", gamma), ("beta", beta), ("bias", bias)):
        require(t is None or t.shape == x.shape[-1:], op, f"{name} must be of the width of x")
    total = x.double()
    for t in (bias, residual):
        total = total if t is None else total + t.double()
    return total


def _normed(made: Tensor, total: Tensor, x: Tensor, out: Tensor | None, store: bool) -> Tensor | tuple[Tensor, Tensor]:
    result = made.to(x.dtype) if out is None else out.copy_(made)
    return (result, total.to(x.dtype)) if store else result


def apply_rotary(
    input: Tensor, sin_cache: Tensor, cos_cache: Tensor, position_ids: Tensor | None, cu_seqlens: Tensor | None,
    interleaved: bool, discrete: bool, dynamic_ntk: bool, max_seqlen: int, *, chip: Chip,
) -> Tensor:  # fmt: skip
    """Turn packed heads [tokens, heads, width] in place; the sine comes first, tables are as wide as the heads."""
    op = "apply_rotary"
    floats(op, chip, {"input": input, "sin_cache": sin_cache, "cos_cache": cos_cache})
    width = input.shape[-1]
    require(input.dim() == 3 and discrete and not dynamic_ntk, op, "the double takes packed input with discrete ids")
    require(
        position_ids is not None and position_ids.dtype is torch.int32, op, "discrete ids must be int32, one per token"
    )
    require(cu_seqlens is not None and cu_seqlens.dtype is torch.int32, op, "packed input needs cu_seqlens in int32")
    require(2 <= width <= ROTARY_HEAD and width % 2 == 0, op, f"heads have 2 to {ROTARY_HEAD} elements, an even number")
    require(sin_cache.shape == cos_cache.shape and sin_cache.shape[-1] == width, op, "tables must be of the full width")
    assert position_ids is not None
    ids = position_ids.long()
    sin, cos, x = sin_cache.double()[ids][:, None], cos_cache.double()[ids][:, None], input.double()
    if interleaved:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    else:
        turned = torch.cat((-x[..., width // 2 :], x[..., : width // 2]), -1)
    return input.copy_(x * cos + turned * sin)


def active(input: Tensor, act_mode: str, is_gated: bool, active_coef: float = 1.0, *, chip: Chip) -> Tensor:
    """An activation, of the first half times the second half if gated."""
    floats("active", chip, {"input": input})
    return activated("active", input.double(), act_mode, is_gated).to(input.dtype)


def activated(op: str, x: Tensor, mode: str, gated: bool) -> Tensor:
    """The same in float64."""
    require(mode in ("silu", "swish", "gelu", "quick_gelu", "none"), op, f"there is no activation {mode!r}")
    require(not gated or x.shape[-1] % 2 == 0, op, "gated input has an even width")
    a, b = x.chunk(2, -1) if gated else (x, None)
    if mode == "gelu":
        a = torch.nn.functional.gelu(a)
    elif mode != "none":
        a = a * torch.sigmoid(1.702 * a if mode == "quick_gelu" else a)
    return a if b is None else a * b
