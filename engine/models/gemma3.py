"""Gemma 3 (text): norms before and after both blocks, norms on queries and keys, five sliding layers to one full one.

Source: `modeling_gemma3.py` of transformers; Gemma 3 technical report (2025).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from xinheng.core import ops
from xinheng.core.errors import ModelError
from xinheng.core.ir import DType, Value
from xinheng.core.ir.dtype import round_to

from ..weights import Checkpoint
from .config import ModelConfig, layer_pattern
from .fields import Fields, ids
from .program import ModelContext, ModelProgram
from .rope import Rope, rope_tables

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
        rope=Rope.read(full, 1e6, head_dim),
        local_rope=Rope.read(local, 1e4, head_dim),
        layer_types=tuple(types) if types else layer_pattern(layers, fields.size("sliding_window_pattern", default=6)),
        sliding_window=fields.size("sliding_window", default=4096),
        attention_scale=fields.number("query_pre_attn_scalar", default=256) ** -0.5,
        hidden_act="gelu_tanh",
        attention_bias=bool(fields.get("attention_bias", default=False)),
        tie_word_embeddings=bool(fields.get("tie_word_embeddings", default=True)),
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
    return ModelConfig(
        model_type="gemma3",
        hidden_size=hidden,
        intermediate_size=fields.size("gemma3.feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.size("gemma3.attention.head_count_kv", default=heads),
        head_dim=head_dim,
        vocab_size=checkpoint.shape("model.embed_tokens.weight")[0],
        max_position=fields.size("gemma3.context_length"),
        rms_norm_eps=fields.number("gemma3.attention.layer_norm_rms_epsilon"),
        rope=Rope.read(full, fields.number("gemma3.rope.freq_base", default=1e6), head_dim),
        local_rope=Rope.read({}, fields.number("gemma3.rope.freq_base_swa", default=1e4), head_dim),
        layer_types=layer_pattern(layers, fields.size("gemma3.attention.sliding_window_pattern", default=6)),
        sliding_window=fields.size("gemma3.attention.sliding_window"),
        attention_scale=scalar**-0.5,
        hidden_act="gelu_tanh",
        tie_word_embeddings="lm_head.weight" not in checkpoint,
        attn_softcap=fields.optional_number("gemma3.attn_logit_softcapping"),
        final_softcap=fields.optional_number("gemma3.final_logit_softcapping"),
        eos_ids=ids(metadata.get("tokenizer.ggml.eos_token_id")),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
    )


def build(config: ModelConfig, checkpoint: Checkpoint, dtype: DType, cache_scheme: str) -> ModelProgram:
    """The graph of one step."""
    m = ModelContext(config, checkpoint, dtype, cache_scheme)
    assert config.local_rope is not None
    tables = {
        "full_attention": rope_tables(m.positions, config.rope.frequencies()),
        "sliding_attention": rope_tables(m.positions, config.local_rope.frequencies()),
    }
    # the model was trained with this factor rounded to the dtype of its activations
    x = ops.mul(m.embed(), float(round_to(math.sqrt(config.hidden_size), dtype)))
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        h = attention(m, layer, m.norm(x, f"{prefix}.input_layernorm"), tables[config.layer_types[layer]])
        x = ops.add(x, m.norm(h, f"{prefix}.post_attention_layernorm"))
        h = mlp(m, f"{prefix}.mlp", m.norm(x, f"{prefix}.pre_feedforward_layernorm"))
        x = ops.add(x, m.norm(h, f"{prefix}.post_feedforward_layernorm"))
    return m.finish(x)


def attention(m: ModelContext, layer: int, x: Value, tables: tuple[Value, Value]) -> Value:
    """Self-attention with normed queries and keys: [tokens, hidden] to [tokens, hidden]."""
    config, prefix = m.config, f"model.layers.{layer}.self_attn"
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    q = m.heads(m.linear(x, f"{prefix}.q_proj", heads * width, config.attention_bias), heads)
    k = m.heads(m.linear(x, f"{prefix}.k_proj", kv_heads * width, config.attention_bias), kv_heads)
    v = m.heads(m.linear(x, f"{prefix}.v_proj", kv_heads * width, config.attention_bias), kv_heads)
    q = ops.rotary_embedding(m.norm(q, f"{prefix}.q_norm"), *tables, interleaved=config.interleaved)
    k = ops.rotary_embedding(m.norm(k, f"{prefix}.k_norm"), *tables, interleaved=config.interleaved)
    out = ops.reshape(m.attend(layer, q, k, v), shape=(m.tokens, heads * width))
    return m.linear(out, f"{prefix}.o_proj", config.hidden_size, config.attention_bias)


def mlp(m: ModelContext, prefix: str, x: Value) -> Value:
    """The gated GELU network: [tokens, hidden] to [tokens, hidden]."""
    config = m.config
    gate = m.linear(x, f"{prefix}.gate_proj", config.intermediate_size)
    up = m.linear(x, f"{prefix}.up_proj", config.intermediate_size)
    return m.linear(ops.gelu_and_mul(gate, up, approximate="tanh"), f"{prefix}.down_proj", config.hidden_size)
