"""Qwen 3 with experts: qwen3 whose networks are mixtures, chosen by softmax.

Source: `modeling_qwen3_moe.py` of transformers; Qwen3 technical report (2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xinheng.core import ops
from xinheng.core.errors import ModelError
from xinheng.core.ir import DType

from ..layers import (
    WHOLE,
    ExpertConfig,
    ModelConfig,
    ModelContext,
    ModelProgram,
    Shard,
    gated_mlp,
    grouped_query_attention,
    mixture_of_experts,
    rope_tables,
)
from ..weights import Checkpoint
from .fields import Fields
from .hugging_face import decoder_config


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


def build(
    config: ModelConfig, checkpoint: Checkpoint, dtype: DType, cache_scheme: str, shard: Shard = WHOLE
) -> ModelProgram:
    """The graph of one step."""
    m = ModelContext(config, checkpoint, dtype, cache_scheme, shard)
    assert config.moe is not None
    tables = rope_tables(m.positions, config.rope.frequencies(), config.rope.magnitude)
    x = m.embed()
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        normed = m.norm(x, f"{prefix}.input_layernorm")
        x = ops.add(x, grouped_query_attention(m, layer, normed, tables, head_norms=True))
        normed = m.norm(x, f"{prefix}.post_attention_layernorm")
        if config.moe.layers[layer]:
            x = ops.add(x, mixture_of_experts(m, f"{prefix}.mlp", normed))
        else:
            x = ops.add(x, gated_mlp(m, f"{prefix}.mlp", normed, config.intermediate_size))
    return m.finish(x)
