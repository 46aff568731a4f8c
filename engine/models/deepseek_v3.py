"""DeepSeek V3 and R1: latent attention, and experts chosen by sigmoid with a selection bias inside groups.

Source: `modeling_deepseek_v3.py` of transformers; DeepSeek-V3 technical report (2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from xinheng.core import ops
from xinheng.core.errors import ModelError
from xinheng.core.ir import DType

from ..layers import (
    WHOLE,
    ExpertConfig,
    LatentConfig,
    ModelConfig,
    ModelContext,
    ModelProgram,
    Shard,
    feed_forward,
    latent_attention,
    rope_tables,
)
from ..weights import Checkpoint
from .fields import Fields
from .hugging_face import decoder_config

LATENT_NORM_EPS = 1e-6
"""The norms of the latents do not take the config's eps but the default of their class."""


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Read a `config.json` of type deepseek_v3."""
    fields = Fields(config, "config.json")
    _check_routing(fields)
    layers, inner = fields.size("num_hidden_layers"), fields.size("moe_intermediate_size", default=2048)
    dense = fields.count("first_k_dense_replace", default=3)
    bias = fields.flag("attention_bias", default=False)
    moe = ExpertConfig(
        experts=fields.size("n_routed_experts", default=256),
        chosen=fields.size("num_experts_per_tok", default=8),
        inner=inner,
        layers=tuple(layer >= dense for layer in range(layers)),
        shared_inner=inner * fields.count("n_shared_experts", default=1),
        score="sigmoid",
        renormalise=fields.flag("norm_topk_prob", default=True),
        scale=fields.number("routed_scaling_factor", default=2.5),
        selection_bias=True,
        groups=fields.size("n_group", default=8),
        groups_kept=fields.size("topk_group", default=4),
    )
    mla = LatentConfig(
        query_rank=fields.size("q_lora_rank") if fields.get("q_lora_rank", default=None) else None,
        latent_dim=fields.size("kv_lora_rank", default=512),
        nope_dim=fields.size("qk_nope_head_dim", default=128),
        rope_dim=fields.size("qk_rope_head_dim", default=64),
        value_dim=fields.size("v_head_dim", default=128),
        norm_eps=LATENT_NORM_EPS,
    )
    base = decoder_config(
        config,
        "deepseek_v3",
        head_dim=mla.nope_dim + mla.rope_dim,
        rope_width=mla.rope_dim,
        num_kv_heads=fields.size("num_attention_heads"),
        interleaved=fields.flag("rope_interleave", default=True),
        attention_bias=bias,
        moe=moe,
        mla=mla,
        extra_layers=fields.count("num_nextn_predict_layers", "num_mtp_layers", default=0),
    )
    return replace(base, attention_scale=base.attention_scale * base.rope.softmax_magnitude**2)


def _check_routing(fields: Fields) -> None:
    """Refuse a config that routes in another way than V3 does."""
    for name, meant in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc"), ("moe_layer_freq", 1)):
        if (value := fields.get(name, default=meant)) != meant:
            raise ModelError(f"{fields.where}: {name} is {value!r}; deepseek_v3 knows {meant!r}")


def build(
    config: ModelConfig, checkpoint: Checkpoint, dtype: DType, cache_scheme: str, shard: Shard = WHOLE
) -> ModelProgram:
    """The graph of one step. Layers beyond the config's, which predict further tokens, are left out."""
    m = ModelContext(config, checkpoint, dtype, cache_scheme, shard)
    tables = rope_tables(m.positions, config.rope.frequencies(), config.rope.magnitude)
    x = m.embed()
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        x = ops.add(x, latent_attention(m, layer, m.norm(x, f"{prefix}.input_layernorm"), tables))
        normed = m.norm(x, f"{prefix}.post_attention_layernorm")
        x = ops.add(x, feed_forward(m, layer, normed))
    return m.finish(x)
