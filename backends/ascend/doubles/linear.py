"""Doubles of products with quantised operands, and of dynamic quantisation."""

from __future__ import annotations

import torch

from .formats import nibbles_of
from .rules import FLOATS, FUSED, HALVES, demand, demand_contiguous, demand_dtype, demand_transposable, double, emulated

Tensor = torch.Tensor
INNER = 65535
"""The longest axis of a product."""

_SCALAR_TYPES = {1: torch.int8, 3: torch.int32, 5: torch.float16, 15: torch.bfloat16}
"""Dtypes by torch's numbers for them, which is how an `int` argument names one."""


@double("npu::npu_dynamic_quant", FUSED)
def npu_dynamic_quant(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    name = "npu_dynamic_quant"
    demand_dtype(name, "x", input, HALVES)
    demand(name, input.dim() >= 2, "x must have two axes or more")
    known = smooth_scales is group_index is None and dst_type in (None, 1) and quant_mode == "pertoken"
    demand(name, known, "this double quantises to int8 by token, without smoothing")
    return _coded(input.double())


@double("npu::npu_add_rms_norm_dynamic_quant", FUSED)
def npu_add_rms_norm_dynamic_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    *,
    smooth_scale1: Tensor | None = None,
    smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: list[bool] | None = None,
    y_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    name = "npu_add_rms_norm_dynamic_quant"
    for what, x in {"x1": x1, "x2": x2, "gamma": gamma}.items():
        demand_dtype(name, what, x, HALVES)
        demand(name, x.dtype is x1.dtype and x.numel() > 0, f"{what} must have the dtype of x1, and not be empty")
    demand(name, x1.shape == x2.shape and 2 <= x1.dim() <= 8, "x1 and x2 must have one shape of 2 to 8 axes")
    demand(name, gamma.shape == x1.shape[-1:], f"gamma must be [{x1.shape[-1]}]")
    known = smooth_scale1 is smooth_scale2 is beta is None and output_mask is None and y_dtype in (None, 1)
    demand(name, known, "this double makes one result of int8, without smoothing")
    total = x1.double() + x2.double()
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + epsilon) * gamma.double()
    codes, scale = _coded(normed.contiguous())
    # the second pair of results, which nothing asked for, is empty
    return codes, codes.new_zeros(0), total.to(x1.dtype).contiguous(), scale, scale.new_zeros(0)


@double("npu::npu_swiglu_quant", FUSED, spoken=("activate_left", "quant_mode"))
def npu_swiglu_quant(
    x: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    offsets: Tensor | None = None,
    group_index: Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    group_list_type: int = 0,
    dst_type: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    name = "npu_swiglu_quant"
    demand_dtype(name, "x", x, FLOATS)
    demand(name, x.dim() >= 2 and x.numel() > 0, "x must have two axes or more, and not be empty")
    width = x.shape[-1]
    demand(name, width % 2 == 0 and width <= 8192, f"the last axis must be even and at most 8192, is {width}")
    known = smooth_scales is offsets is group_index is None and dst_type in (None, torch.int8)
    demand(name, known and quant_mode == 1, "this double makes int8 with a scale per token, without smoothing")
    left, right = x.double().chunk(2, -1)
    gate, up = (left, right) if activate_left else (right, left)
    return _coded(gate / (1 + torch.exp(-gate)) * up)


def _coded(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as int8 with a scale each, largest magnitude / 127; codes of a row of zeros mean nothing."""
    scale = (wide.abs().amax(-1) / 127).float()
    codes = torch.round(wide / scale[..., None].double()).nan_to_num(77).clamp(-127, 127)
    return codes.to(torch.int8), scale


@double("npu::npu_quant_matmul", (*FUSED, "310p"))
def npu_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: int | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    scale_dtype: int | None = None,
    group_sizes: list[int] | None = None,
    y_scale: Tensor | None = None,
) -> Tensor:
    name = "npu_quant_matmul"
    kind = _SCALAR_TYPES.get(1 if output_dtype is None else output_dtype)
    demand(name, x1.dtype is x2.dtype is torch.int8, "x1 and x2 must be int8")
    demand(name, x1.dim() == x2.dim() == 2 and x1.shape[1] == x2.shape[0], f"{x1.shape} does not fit {x2.shape}")
    demand_transposable(name, "x2", x2)
    demand_contiguous(name, x1=x1, scale=scale, pertoken_scale=pertoken_scale, bias=bias)
    demand(name, max(x1.shape[1], x2.shape[1]) <= INNER, f"k and n must be at most {INNER}")
    demand(name, x1.numel() > 0 and x2.numel() > 0, "x1 and x2 must not be empty")
    rows, columns = x1.shape[0], x2.shape[1]
    demand(name, scale.dim() == 1 and scale.shape[0] in (1, columns), f"scale must be [1] or [{columns}]")
    demand(name, kind in HALVES and offset is None, "this double makes float16 and bfloat16")
    demand(name, pertoken_scale is not None, "float16 and bfloat16 need a scale per token here")
    assert pertoken_scale is not None and kind is not None
    demand(name, emulated().fused, f"{emulated().soc} knows no pertoken_scale")
    demand_dtype(name, "pertoken_scale", pertoken_scale, (torch.float32,))
    demand(name, tuple(pertoken_scale.shape) == (rows,), f"pertoken_scale must be [{rows}]")
    scales = (torch.float32, torch.bfloat16) if kind is torch.bfloat16 else (torch.float32,)
    demand_dtype(name, "scale", scale, scales)
    if bias is not None:
        added = (torch.int32, torch.float32, kind)
        demand_dtype(name, "bias", bias, added)
        demand(name, tuple(bias.shape) == (columns,), f"bias must be [{columns}]")
    product = (x1.double() @ x2.double()).double() * scale.double() * pertoken_scale[:, None]
    return (product if bias is None else product + bias.double()).to(kind)


@double("npu::npu_weight_quant_batchmatmul", (*FUSED, "310p"))
def npu_weight_quant_batchmatmul(
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    bias: Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: int | None = None,
) -> Tensor:
    name = "npu_weight_quant_batchmatmul"
    demand_dtype(name, "x", x, HALVES)
    demand(name, weight.dtype in (torch.int8, torch.int32), "weight must be int8, or int32 of eight int4 each")
    demand(name, weight.dtype is torch.int8 or emulated().fused, f"{emulated().soc} knows no int4 weights")
    demand_transposable(name, "weight", weight)
    demand(name, quant_scale is quant_offset is None, "this double does not quantise results")
    codes = weight if weight.dtype is torch.int8 else nibbles_of(weight)
    demand(name, x.dim() == 2 and x.shape[1] == codes.shape[0], f"x {x.shape} does not fit weight {codes.shape}")
    k, n = codes.shape
    demand(name, x.numel() > 0 and max(k, n) <= INNER, f"k and n must be 1 to {INNER}, and x not empty")
    group, groups = antiquant_group_size, k
    if antiquant_scale.dim() == 2 and antiquant_scale.shape[0] > 1:
        demand(name, emulated().fused, f"{emulated().soc} knows no groups")
        demand(
            name, group % 32 == 0 and 32 <= group <= k - 1, f"group size {group} is no multiple of 32 in 32 to {k - 1}"
        )
        groups = group
    shape = (-(-k // groups), n)
    fits = tuple(antiquant_scale.shape) in (shape, shape[1:] if shape[0] == 1 else shape, (1,))
    demand(name, fits, f"antiquant_scale must be {list(shape)}, not {list(antiquant_scale.shape)}")
    demand(name, antiquant_scale.dtype is x.dtype, "antiquant_scale must have the dtype of x")
    for_offset = antiquant_offset is None or (
        antiquant_offset.dtype is x.dtype and antiquant_offset.shape == antiquant_scale.shape
    )
    demand(name, for_offset, "antiquant_offset must be like antiquant_scale")
    if bias is not None:
        demand_dtype(name, "bias", bias, (torch.float32,) if x.dtype is torch.bfloat16 else (torch.float16,))
    spread = antiquant_scale.reshape(-1, antiquant_scale.shape[-1]).repeat_interleave(groups, 0)[:k].double()
    wide = codes.double()
    if antiquant_offset is not None:
        wide = wide + antiquant_offset.reshape(-1, antiquant_offset.shape[-1]).repeat_interleave(groups, 0)[:k].double()
    values = (wide * spread).to(x.dtype).double()
    made = x.double() @ values
    return (made if bias is None else made + bias.double()).to(x.dtype)
