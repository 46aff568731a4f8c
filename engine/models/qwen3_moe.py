"""Qwen 3 with experts: qwen3 whose networks are mixtures, chosen by softmax.

Source: `modeling_qwen3_moe.py` of transformers; Qwen3 technical report (2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xinheng.core.errors import ModelError

from ..layers import ExpertConfig, ModelConfig
from .fields import Fields
from .hugging_face import decoder_config
from .qwen3 import build

__all__ = ["build", "from_hugging_face"]


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Read a `config.json` of type qwen3_moe; with `use_sliding_window` all layers slide, as in transformers 5."""
    fields = Fields(config, "config.json")
    layers, bias = fields.size("num_hidden_layers"), fields.flag("attention_bias", default=False)
    step, dense = fields.size("decoder_sparse_step", default=1), fields.get("mlp_only_layers", default=[])
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise ModelError(f"config.json: mlp_only_layers is {dense!r}, it must be a list of layer numbers")
    window: dict[str, Any] = {}
    if fields.flag("use_sliding_window", default=False):
        window = {"sliding_window": fields.size("sliding_window"), "layer_types": ("sliding_attention",) * layers}
    moe = ExpertConfig(
        experts=fields.size("num_experts", "num_local_experts", default=128),
        chosen=fields.size("num_experts_per_tok", default=8),
        inner=fields.size("moe_intermediate_size", default=768),
        layers=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers)),
        renormalise=fields.flag("norm_topk_prob", default=False),
    )
    return decoder_config(
        config,
        "qwen3_moe",
        attention_bias=bias,
        output_bias=bias,
        moe=moe,
        **window,
    )
