"""Gemma 3 (text): norms before and after both blocks, norms on queries and keys, five sliding layers to one full one.

Source: `modeling_gemma3.py` of transformers; Gemma 3 technical report (2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from xinheng.core import ops
from xinheng.core.errors import ModelError
from xinheng.core.ir import DType
from xinheng.core.ir.dtype import round_to

from ..layers import (
    WHOLE,
    ModelConfig,
    ModelContext,
    ModelProgram,
    Shard,
    gated_mlp,
    grouped_query_attention,
    layer_pattern,
    rope_tables,
)
from ..weights import Checkpoint
from .fields import Fields, ids
from .gguf import gguf_config
from .rope_parameters import read_rope_parameters

OFFSET_NORMS = True
"""Hugging Face files store norm weights as an offset from one; GGUF files already hold the sum."""


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Read a `config.json` of type gemma3_text (or the text part of one of type gemma3)."""
    fields = Fields(config.get("text_config", config), "config.json")
    heads, layers = fields.size("num_attention_heads"), fields.size("num_hidden_layers")
    head_dim = fields.size("head_dim", default=256)
    types = fields.get("layer_types", default=None)
    rope = fields.table("rope_parameters", default={})
    if not rope:
        base = fields.number("rope_theta", default=1e6)
        full: Mapping[str, Any] = {"rope_theta": base, **fields.table("rope_scaling", default={})}
        local: Mapping[str, Any] = {"rope_theta": fields.number("rope_local_base_freq", default=1e4)}
    else:
        nested = Fields(rope, "rope_parameters")
        full, local = nested.table("full_attention", default=rope), nested.table("sliding_attention", default={})
    if fields.get("use_bidirectional_attention", default=False):
        raise ModelError("config.json: use_bidirectional_attention makes this an encoder, which cannot generate text")
    act = fields.get("hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    if act != "gelu_pytorch_tanh":
        raise ModelError(
            f"config.json: hidden_activation {act!r} is not what Gemma 3 uses; expected 'gelu_pytorch_tanh'"
        )
    return ModelConfig(
        model_type="gemma3",
        hidden_size=fields.size("hidden_size"),
        intermediate_size=fields.size("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.size("num_key_value_heads", default=4),
        head_dim=head_dim,
        vocab_size=fields.size("vocab_size"),
        max_position=fields.size("max_position_embeddings", default=131072),
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
        rope=read_rope_parameters(full, 1e6, head_dim),
        local_rope=read_rope_parameters(local, 1e4, head_dim),
        layer_types=tuple(types) if types else layer_pattern(layers, fields.size("sliding_window_pattern", default=6)),
        sliding_window=fields.size("sliding_window", default=4096),
        attention_scale=fields.number("query_pre_attn_scalar", default=256) ** -0.5,
        hidden_act="gelu_tanh",
        attention_bias=fields.flag("attention_bias", default=False),
        output_bias=fields.flag("attention_bias", default=False),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=True),
        attn_softcap=fields.optional_number("attn_logit_softcapping"),
        final_softcap=fields.optional_number("final_logit_softcapping"),
        eos_ids=ids(fields.get("eos_token_id", default=None)),
        bos_id=fields.get("bos_token_id", default=None),
    )


def from_gguf(metadata: Mapping[str, Any], checkpoint: Checkpoint) -> ModelConfig:
    """Read GGUF metadata of architecture gemma3."""
    fields = Fields(metadata, "GGUF metadata")
    heads, layers = fields.size("gemma3.attention.head_count"), fields.size("gemma3.block_count")
    hidden = fields.size("gemma3.embedding_length")
    head_dim = fields.size("gemma3.attention.key_length", default=256)
    factor = fields.number("gemma3.rope.scaling.factor", default=1.0)
    full = {"rope_type": "linear", "factor": factor} if factor != 1.0 else {}
    # only the largest Gemma 3 (62 layers) scales its queries by hidden / heads instead of the width of a head
    scalar = hidden / heads if layers == 62 else float(head_dim)
    return gguf_config(
        metadata,
        checkpoint,
        "gemma3",
        head_dim=head_dim,
        rope=read_rope_parameters(full, fields.number("gemma3.rope.freq_base", default=1e6), head_dim),
        local_rope=read_rope_parameters({}, fields.number("gemma3.rope.freq_base_swa", default=1e4), head_dim),
        layer_types=layer_pattern(layers, fields.size("gemma3.attention.sliding_window_pattern", default=6)),
        sliding_window=fields.size("gemma3.attention.sliding_window"),
        attention_scale=scalar**-0.5,
        hidden_act="gelu_tanh",
        attn_softcap=fields.optional_number("gemma3.attn_logit_softcapping"),
        final_softcap=fields.optional_number("gemma3.final_logit_softcapping"),
    )


def build(
    config: ModelConfig, checkpoint: Checkpoint, dtype: DType, cache_scheme: str, shard: Shard = WHOLE
) -> ModelProgram:
    """The graph of one step."""
    m = ModelContext(config, checkpoint, dtype, cache_scheme, shard)
    assert config.local_rope is not None
    tables = {
        "full_attention": rope_tables(m.positions, config.rope.frequencies()),
        "sliding_attention": rope_tables(m.positions, config.local_rope.frequencies()),
    }
    # the model was trained with this factor rounded to the dtype of its activations
    x = ops.mul(m.embed(), float(round_to(math.sqrt(config.hidden_size), dtype)))
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        normed = m.norm(x, f"{prefix}.input_layernorm")
        h = grouped_query_attention(m, layer, normed, tables[config.layer_types[layer]], head_norms=True)
        x = ops.add(x, m.norm(h, f"{prefix}.post_attention_layernorm"))
        normed = m.norm(x, f"{prefix}.pre_feedforward_layernorm")
        h = gated_mlp(m, f"{prefix}.mlp", normed, config.intermediate_size)
        x = ops.add(x, m.norm(h, f"{prefix}.post_feedforward_layernorm"))
    return m.finish(x)
