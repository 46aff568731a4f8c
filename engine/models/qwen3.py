"""Qwen 3: llama with norms on the heads of queries and keys.

Source: `modeling_qwen3.py` of transformers; Qwen3 technical report (2025).
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
    feed_forward,
    grouped_query_attention,
    rope_tables,
)
from ..weights import Checkpoint
from .fields import Fields
from .gguf import gguf_config
from .hugging_face import decoder_config, sliding_layers
from .rope_parameters import read_rope_parameters


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Read a `config.json` of type qwen3."""
    fields = Fields(config, "config.json")
    bias = fields.flag("attention_bias", default=False)
    window = sliding_layers(fields, fields.size("num_hidden_layers"))
    width = fields.size("head_dim", default=128)
    return decoder_config(config, "qwen3", head_dim=width, attention_bias=bias, output_bias=bias, **window)


def from_gguf(metadata: Mapping[str, Any], checkpoint: Checkpoint) -> ModelConfig:
    """Read GGUF metadata of architecture qwen3, whose rotary pairs are the halves of a head as in the original.

    Raises:
        ModelError: a value is missing or impossible, or rotary positions are scaled.
    """
    fields = Fields(metadata, "GGUF metadata")
    kind = fields.get("qwen3.rope.scaling.type", default="none")
    if kind != "none":
        raise ModelError(f"GGUF metadata: qwen3.rope.scaling.type {kind!r} is not supported; known: none")
    width = fields.size("qwen3.attention.key_length", default=128)
    rope = read_rope_parameters({}, fields.number("qwen3.rope.freq_base", default=1e6), width)
    return gguf_config(metadata, checkpoint, "qwen3", head_dim=width, rope=rope)


def build(
    config: ModelConfig, checkpoint: Checkpoint, dtype: DType, cache_scheme: str, shard: Shard = WHOLE
) -> ModelProgram:
    """The graph of one step."""
    m = ModelContext(config, checkpoint, dtype, cache_scheme, shard)
    tables = rope_tables(m.positions, config.rope.frequencies(), config.rope.magnitude)
    x = m.embed()
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        normed = m.norm(x, f"{prefix}.input_layernorm")
        x = ops.add(x, grouped_query_attention(m, layer, normed, tables, head_norms=True))
        normed = m.norm(x, f"{prefix}.post_attention_layernorm")
        x = ops.add(x, feed_forward(m, layer, normed))
    return m.finish(x)
