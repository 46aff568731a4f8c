"""Which functions of PyTorch mean what our ops mean, and which of our ops it has nothing for."""

from __future__ import annotations

from xinheng.core.ir.dtype import bfloat16, bool_, float16, float32, float64, int8, int16, int32, int64, uint8

from . import torch_calls as calls
from . import torch_windows as windows
from .torch_calls import Convert

COUNTERPARTS: dict[str, dict[str, Convert]] = {
    **{name: {name: calls.unary} for name in ("neg", "abs", "exp", "log", "sin", "cos", "tanh", "erf", "sigmoid")},
    **{name: {name: calls.unary} for name in ("sqrt", "rsqrt", "square", "logical_not", "reciprocal", "floor")},
    **{name: {name: calls.unary} for name in ("isfinite", "atan", "log1p", "expm1")},
    **{name: {name: calls.binary} for name in ("add", "sub", "mul", "maximum", "minimum", "eq", "lt", "le")},
    **{name: {name: calls.binary} for name in ("logical_and", "logical_or", "bitwise_and")},
    **{name: {name: calls.running} for name in ("cumsum", "cumprod")},
    "silu": {"nn.functional.silu": calls.unary},
    "gelu": {"nn.functional.gelu": calls.gelu},
    "round": {"round": calls.rounded},
    "div": {"div.no_rounding_mode": calls.binary, "true_divide": calls.binary},
    "fmod": {"fmod": calls.remainder},
    "trunc_div": {"div.trunc_rounding": calls.trunc_div},
    "pow": {"pow": calls.power},
    "where": {"where": calls.chosen},
    "clamp": {"clamp": calls.clamp, "nn.functional.hardtanh": calls.hardtanh},
    "bitwise_shift": {"bitwise_left_shift": calls.shift(1), "bitwise_right_shift": calls.shift(-1)},
    "cast": {
        "double": calls.cast(float64),
        "float": calls.cast(float32),
        "half": calls.cast(float16),
        "bfloat16": calls.cast(bfloat16),
        "long": calls.cast(int64),
        "int": calls.cast(int32),
        "short": calls.cast(int16),
        "char": calls.cast(int8),
        "byte": calls.cast(uint8),
        "bool": calls.cast(bool_),
    },
    "full": {"full": calls.full},
    "arange": {"arange": calls.arange},
    "reshape": {"reshape": calls.reshape, "view": calls.reshape},
    "permute": {"permute": calls.permute},
    "expand": {"expand": calls.expand, "broadcast_to": calls.expand},
    "concat": {"cat": calls.concat},
    "split": {"split_with_sizes": calls.split},
    "slice": {"narrow": calls.narrow, "slice": calls.sliced},
    "index_select": {"index_select": calls.index_select},
    "gather": {"gather": calls.gather},
    "scatter": {
        "scatter": calls.scatter,
        "scatter_add": calls.scatter_add,
        **{f"scatter_reduce.{word}": calls.scatter for word in ("sum", "prod", "amax", "amin")},
    },
    "nonzero": {"nonzero": calls.nonzero},
    "sum": {"sum": calls.added},
    "prod": {"prod": calls.added},
    "mean": {"mean": calls.folded},
    "amax": {"amax": calls.folded},
    "argmax": {"argmax": calls.argmax},
    "topk": {"topk": calls.topk},
    "softmax": {"softmax": calls.softmax, "softmax.with_dtype": calls.softmax},
    "matmul": {"matmul": calls.binary, "mm": calls.binary, "bmm": calls.binary},
    "linear": {"nn.functional.linear": calls.linear},
    "embedding": {"nn.functional.embedding": calls.embedding},
    "batched_linear": {"bmm": calls.per_head},
    "rms_norm": {"nn.functional.rms_norm": calls.rms_norm},
    "layer_norm": {"nn.functional.layer_norm": calls.layer_norm},
    "sdpa_varlen": {"nn.functional.scaled_dot_product_attention": calls.attention},
    "conv": {f"nn.functional.conv{n}d": windows.conv for n in (1, 2, 3)},
    "conv_transpose": {f"nn.functional.conv_transpose{n}d": windows.conv_transpose for n in (1, 2, 3)},
    "max_pool": {f"nn.functional.max_pool{n}d": windows.pool(n, average=False) for n in (1, 2, 3)},
    "average_pool": {f"nn.functional.avg_pool{n}d": windows.pool(n, average=True) for n in (1, 2, 3)},
}
"""For each op of ours the functions of PyTorch that mean the same, as `OpInfo` calls them with their variant."""

NO_COUNTERPART: dict[str, str] = {
    **dict.fromkeys(("all_gather", "all_reduce", "all_to_all", "reduce_scatter", "matmul_all_reduce"), "collectives"),
    **dict.fromkeys(("write_cache", "write_latent_cache", "copy_blocks"), "paged caches"),
    **dict.fromkeys(("gather_kv_cache", "gather_latent_cache", "kv_norm_rope_cache"), "paged caches"),
    **dict.fromkeys(("paged_attention", "mla_attention"), "paged caches"),
    **dict.fromkeys(("causal_conv1d", "gated_delta_rule"), "states of sequences"),
    **dict.fromkeys(("add_rms_norm", "silu_and_mul", "gelu_and_mul"), "fused layers"),
    **dict.fromkeys(("add_rms_norm_quant", "silu_and_mul_quant", "rotary_embedding"), "fused layers"),
    **dict.fromkeys(("moe_gating_topk", "moe_permute", "moe_unpermute"), "routing"),
    **dict.fromkeys(("grouped_linear", "fused_moe"), "routing"),
    **dict.fromkeys(("dequantize", "quantize", "dequantize_linear", "dynamic_quant"), "quantised tensors"),
    **dict.fromkeys(("int_matmul", "quant_matmul"), "quantised tensors"),
    **dict.fromkeys(("random_uniform", "top_k_top_p_sample", "rejection_sample"), "sampling with given numbers"),
}
"""The ops of ours for which `OpInfo` has nothing, by what they are about."""
