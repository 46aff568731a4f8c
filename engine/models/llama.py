"""Llama and its kin (Yi, Mistral, SmolLM): pre-norms, grouped-query attention and a gated SiLU network.

Source: `modeling_llama.py` of transformers; Touvron et al. 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xinheng.core import ops
from xinheng.core.errors import ModelError
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
from .gguf import gguf_config
from .hugging_face import decoder_config
from .rope_parameters import read_rope_parameters


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Read a `config.json` of type llama, or of type mistral, which alone means its window for all layers."""
    fields = Fields(config, "config.json")
    bias = fields.flag("attention_bias", default=False)
    window: dict[str, Any] = {}
    if config.get("model_type") == "mistral" and fields.get("sliding_window", default=None):
        layers = fields.size("num_hidden_layers")
        window = {"sliding_window": fields.size("sliding_window"), "layer_types": ("sliding_attention",) * layers}
    mlp_bias = fields.flag("mlp_bias", default=False)
    return decoder_config(config, "llama", attention_bias=bias, output_bias=bias, mlp_bias=mlp_bias, **window)


def from_gguf(metadata: Mapping[str, Any], checkpoint: Checkpoint) -> ModelConfig:
    """Read GGUF metadata of architecture llama, whose q and k rows are stored for interleaved rotary pairs."""
    fields = Fields(metadata, "GGUF metadata")
    heads, hidden = fields.size("llama.attention.head_count"), fields.size("llama.embedding_length")
    head_dim = fields.size("llama.attention.key_length", default=hidden // heads)
    if fields.get("llama.expert_count", default=0):
        raise ModelError("GGUF metadata: llama with experts (Mixtral) is not supported yet")
    scaling = {"linear": {"rope_type": "linear", "factor": fields.number("llama.rope.scaling.factor", default=1.0)}}
    kind = fields.get("llama.rope.scaling.type", default="none")
    if kind not in ("none", "linear"):
        raise ModelError(f"GGUF metadata: llama.rope.scaling.type {kind!r} is not supported; known: none, linear")
    width = fields.size("llama.rope.dimension_count", default=head_dim)
    return gguf_config(
        metadata,
        checkpoint,
        "llama",
        head_dim=head_dim,
        rope=read_rope_parameters(scaling.get(kind, {}), fields.number("llama.rope.freq_base", default=1e4), width),
        interleaved=True,
        attention_bias="model.layers.0.self_attn.q_proj.bias" in checkpoint,
        output_bias="model.layers.0.self_attn.o_proj.bias" in checkpoint,
        mlp_bias="model.layers.0.mlp.gate_proj.bias" in checkpoint,
    )


def build(
    config: ModelConfig, checkpoint: Checkpoint, dtype: DType, cache_scheme: str, shard: Shard = WHOLE
) -> ModelProgram:
    """The graph of one step."""
    m = ModelContext(config, checkpoint, dtype, cache_scheme, shard)
    factors = checkpoint.array("rope_freqs.weight") if "rope_freqs.weight" in checkpoint else None
    tables = rope_tables(m.positions, config.rope.frequencies(factors), config.rope.magnitude)
    x = m.embed()
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        x = ops.add(x, grouped_query_attention(m, layer, m.norm(x, f"{prefix}.input_layernorm"), tables))
        normed = m.norm(x, f"{prefix}.post_attention_layernorm")
        x = ops.add(x, gated_mlp(m, f"{prefix}.mlp", normed, config.intermediate_size))
    return m.finish(x)
