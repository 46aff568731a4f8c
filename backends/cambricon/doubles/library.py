"""The doubles of a release of torch_mlu_ops together, as the module that programs import."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

from ..._torch.emulation import device_function
from ..chips import Chip
from . import attention, linear, moe, nn

COMMON: tuple[Callable[..., Any], ...] = (
    *(nn.fused_rms_norm, nn.fused_layer_norm, nn.apply_rotary, nn.active),
    *(attention.flash_attention, attention.reshape_paged_cache),
    *(linear.matmul,),
    *(moe.moe_softmax_topk, moe.moe_gen_idx, moe.moe_expand_input, moe.group_gemm, moe.moe_combine_result),
    *(moe.moe_active,),
)
OF_RELEASE: dict[str, dict[str, Callable[..., Any]]] = {
    "tmo_1_3": {
        "single_query_cached_kv_attn": attention.decode_1_3,
        "smooth_quant_matmul": linear.smooth_quant_matmul,
        "weight_only_quant_matmul": linear.weight_only_quant_matmul,
        "per_token_smooth_quantize": linear.per_token_smooth_quantize,
    },
    "tmo_1_12": {
        "single_query_cached_kv_attn": attention.single_query_cached_kv_attn,
        "scaled_matmul": linear.scaled_matmul,
        "scaled_quantize": linear.scaled_quantize,
        "moe_sigmoid_topk": moe.moe_sigmoid_topk,
    },
}


def library_of(
    release: str, chip: Chip, placed: Callable[[Callable[..., Any]], Callable[..., Any]] = device_function
) -> types.ModuleType | None:
    """The double of a release on a generation of cards; None for "torch", which stands for no torch_mlu_ops at all.

    `placed` makes functions over tensors of the device of functions over tensors of the host.
    """
    if release == "torch":
        return None
    module = types.ModuleType("torch_mlu_ops")
    for name, function in ({f.__name__: f for f in COMMON} | OF_RELEASE[release]).items():
        bound = update_wrapper(partial(function, chip=chip), function)
        setattr(module, name, placed(bound))
    return module
