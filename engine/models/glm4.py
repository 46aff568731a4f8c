"""GLM-4-0414: norms before and after both blocks, half of each head rotated in interleaved pairs, gate and up fused.

Source: `modeling_glm4.py` of transformers; GLM-4 report (2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from xinheng.core import ops
from xinheng.core.ir import DType

from ..layers import (
    WHOLE,
    ModelConfig,
    ModelContext,
    ModelProgram,
    Shard,
    gated_mlp,
    grouped_query_attention,
    rope_tables,
)
from ..weights import Checkpoint
from .fields import Fields
from .hugging_face import decoder_config, read_rope


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Read a `config.json` of type glm4."""
    fields = Fields(config, "config.json")
    base = decoder_config(
        config,
        "glm4",
        head_dim=fields.size("head_dim", default=128),
        rms_norm_eps=fields.number("rms_norm_eps", default=1.5625e-7),
        interleaved=True,
        attention_bias=fields.flag("attention_bias", default=True),
    )
    return replace(base, rope=read_rope(fields, base.head_dim, partial=0.5))


def build(
    config: ModelConfig, checkpoint: Checkpoint, dtype: DType, cache_scheme: str, shard: Shard = WHOLE
) -> ModelProgram:
    """The graph of one step."""
    m = ModelContext(config, checkpoint, dtype, cache_scheme, shard)
    tables = rope_tables(m.positions, config.rope.frequencies(), config.rope.magnitude)
    x = m.embed()
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        h = grouped_query_attention(m, layer, m.norm(x, f"{prefix}.input_layernorm"), tables)
        x = ops.add(x, m.norm(h, f"{prefix}.post_self_attn_layernorm"))
        normed = m.norm(x, f"{prefix}.post_attention_layernorm")
        h = gated_mlp(m, f"{prefix}.mlp", normed, config.intermediate_size, fused=True)
        x = ops.add(x, m.norm(h, f"{prefix}.post_mlp_layernorm"))
    return m.finish(x)
