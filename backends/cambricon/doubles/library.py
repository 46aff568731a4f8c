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
    *(attention.flash_attention, attention.single_query_cached_kv_attn, attention.reshape_paged_cache),
    *(linear.matmul,),
    *(moe.moe_softmax_topk, moe.moe_gen_idx, moe.moe_expand_input, moe.group_gemm, moe.moe_combine_result),
)
OF_RELEASE: dict[str, tuple[Callable[..., Any], ...]] = {
    "tmo_1_3": (linear.smooth_quant_matmul, linear.per_token_smooth_quantize),
    "tmo_1_12": (linear.scaled_matmul, linear.scaled_quantize, moe.moe_sigmoid_topk),
}


def library_of(release: str, chip: Chip) -> types.ModuleType | None:
    """The double of a release on a generation of cards; None for "torch", which stands for no torch_mlu_ops at all."""
    if release == "torch":
        return None
    module = types.ModuleType("torch_mlu_ops")
    for function in (*COMMON, *OF_RELEASE[release]):
        bound = update_wrapper(partial(function, chip=chip), function)
        setattr(module, function.__name__, device_function(bound))
    return module
