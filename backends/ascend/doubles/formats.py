"""Doubles of the operators that change in which order a tensor lies in memory, or how integers are packed."""

from __future__ import annotations

import torch

from .rules import EVERY, ND, NZ, demand, double, marked

Tensor = torch.Tensor


@double("npu::npu_format_cast", EVERY)
def npu_format_cast(
    input: Tensor, acl_format: int, *, customize_dtype: int | None = None, input_dtype: int | None = None
) -> Tensor:
    """Memory stays as it is; the tensor says in which order it would be."""
    name = "npu_format_cast"
    demand(name, acl_format in (ND, NZ), f"this double knows the formats {ND} (ND) and {NZ} (FRACTAL_NZ)")
    kinds = (torch.float16, torch.bfloat16, torch.int8)
    demand(name, acl_format == ND or input.dtype in kinds, f"{input.dtype} cannot lie in FRACTAL_NZ")
    demand(name, input.is_contiguous() and input.dim() >= 2, "input must be a contiguous matrix")
    return marked(input.clone(), acl_format)


@double("npu::npu_convert_weight_to_int4pack", ("910b", "910c", "950"))
def npu_convert_weight_to_int4pack(weight: Tensor, inner_k_tiles: int = 0) -> Tensor:
    """int32 [k, n] of -8 to 7 as int32 [k, n / 8], the first of eight in the lowest bits."""
    name = "npu_convert_weight_to_int4pack"
    demand(name, weight.dtype is torch.int32 and weight.dim() == 2, "weight must be int32 [k, n]")
    demand(name, weight.shape[1] % 8 == 0, f"n must be a multiple of 8, is {weight.shape[1]}")
    small = weight.numel() == 0 or (int(weight.min()) >= -8 and int(weight.max()) <= 7)
    demand(name, small, "weight must lie in -8 to 7")
    nibbles = (weight.reshape(weight.shape[0], -1, 8) & 15) << torch.arange(0, 32, 4, dtype=torch.int32)
    return nibbles.sum(-1).to(torch.int32)


def nibbles_of(packed: Tensor) -> Tensor:
    """The inverse: int32 [k, n / 8] to [k, n]."""
    fields = (packed[..., None] >> torch.arange(0, 32, 4, dtype=torch.int32)) & 15
    return torch.where(fields > 7, fields - 16, fields).flatten(-2)
