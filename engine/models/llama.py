"""Llama and its kin (Yi, Mistral, SmolLM): pre-norms, grouped-query attention and a gated SiLU network.

Source: `modeling_llama.py` of transformers; Touvron et al. 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xinheng.core import ops
from xinheng.core.errors import ModelError
from xinheng.core.ir import DType, Value

from ..weights import Checkpoint
from .config import ModelConfig
from .fields import Fields, ids
from .program import ModelContext, ModelProgram
from .rope import Rope, rope_tables


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Read a `config.json` of type llama."""
    fields = Fields(config, "config.json")
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    head_dim = fields.size("head_dim", default=hidden // heads)
    act = fields.get("hidden_act", default="silu")
    if act != "silu":
        raise ModelError(f"config.json: hidden_act {act!r} is not what a llama model uses; expected 'silu'")
    layers = fields.size("num_hidden_layers")
    window = fields.size("sliding_window") if _slides(fields) else None
    return ModelConfig(
        model_type="llama",
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.size("num_key_value_heads", default=heads),
        head_dim=head_dim,
        vocab_size=fields.size("vocab_size"),
        max_position=fields.size("max_position_embeddings", default=2048),
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
        rope=_rope(fields, head_dim),
        layer_types=("full_attention" if window is None else "sliding_attention",) * layers,
        sliding_window=window,
        attention_scale=head_dim**-0.5,
        attention_bias=bool(fields.get("attention_bias", default=False)),
        mlp_bias=bool(fields.get("mlp_bias", default=False)),
        tie_word_embeddings=bool(fields.get("tie_word_embeddings", default=False)),
        eos_ids=ids(config.get("eos_token_id")),
        bos_id=config.get("bos_token_id"),
    )


def _slides(fields: Fields) -> bool:
    """Whether all layers have a window: only Mistral's config means it so."""
    return bool(fields.values.get("model_type") == "mistral" and fields.get("sliding_window", default=None))


def _rope(fields: Fields, width: int) -> Rope:
    parameters = fields.table("rope_parameters", default={})
    if not parameters:
        return Rope.read(fields.table("rope_scaling", default={}), fields.number("rope_theta", default=1e4), width)
    theta = parameters.get("rope_theta") or fields.number("rope_theta")
    return Rope.read(parameters, theta, width)


def from_gguf(metadata: Mapping[str, Any], checkpoint: Checkpoint) -> ModelConfig:
    """Read GGUF metadata of architecture llama, whose q and k rows are stored for interleaved rotary pairs."""
    fields = Fields(metadata, "GGUF metadata")
    heads, hidden = fields.size("llama.attention.head_count"), fields.size("llama.embedding_length")
    head_dim = fields.size("llama.attention.key_length", default=hidden // heads)
    layers = fields.size("llama.block_count")
    if fields.get("llama.expert_count", default=0):
        raise ModelError("GGUF metadata: llama with experts (Mixtral) is not supported yet")
    scaling = {"linear": {"rope_type": "linear", "factor": fields.number("llama.rope.scaling.factor", default=1.0)}}
    kind = fields.get("llama.rope.scaling.type", default="none")
    if kind not in ("none", "linear"):
        raise ModelError(f"GGUF metadata: llama.rope.scaling.type {kind!r} is not supported; known: none, linear")
    width = fields.size("llama.rope.dimension_count", default=head_dim)
    return ModelConfig(
        model_type="llama",
        hidden_size=hidden,
        intermediate_size=fields.size("llama.feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.size("llama.attention.head_count_kv", default=heads),
        head_dim=head_dim,
        vocab_size=checkpoint.shape("model.embed_tokens.weight")[0],
        max_position=fields.size("llama.context_length"),
        rms_norm_eps=fields.number("llama.attention.layer_norm_rms_epsilon"),
        rope=Rope.read(scaling.get(kind, {}), fields.number("llama.rope.freq_base", default=1e4), width),
        layer_types=("full_attention",) * layers,
        attention_scale=head_dim**-0.5,
        interleaved=True,
        attention_bias="model.layers.0.self_attn.q_proj.bias" in checkpoint,
        mlp_bias="model.layers.0.mlp.gate_proj.bias" in checkpoint,
        tie_word_embeddings="lm_head.weight" not in checkpoint,
        eos_ids=ids(metadata.get("tokenizer.ggml.eos_token_id")),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
    )


def build(config: ModelConfig, checkpoint: Checkpoint, dtype: DType, cache_scheme: str) -> ModelProgram:
    """The graph of one step."""
    m = ModelContext(config, checkpoint, dtype, cache_scheme)
    factors = checkpoint.array("rope_freqs.weight") if "rope_freqs.weight" in checkpoint else None
    tables = rope_tables(m.positions, config.rope.frequencies(factors))
    x = m.embed()
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        x = ops.add(x, attention(m, layer, m.norm(x, f"{prefix}.input_layernorm"), tables))
        x = ops.add(x, mlp(m, f"{prefix}.mlp", m.norm(x, f"{prefix}.post_attention_layernorm")))
    return m.finish(x)


def attention(m: ModelContext, layer: int, x: Value, tables: tuple[Value, Value]) -> Value:
    """Self-attention with rotary positions: [tokens, hidden] to [tokens, hidden]."""
    config, prefix = m.config, f"model.layers.{layer}.self_attn"
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    q = m.heads(m.linear(x, f"{prefix}.q_proj", heads * width, config.attention_bias), heads)
    k = m.heads(m.linear(x, f"{prefix}.k_proj", kv_heads * width, config.attention_bias), kv_heads)
    v = m.heads(m.linear(x, f"{prefix}.v_proj", kv_heads * width, config.attention_bias), kv_heads)
    q = ops.rotary_embedding(q, *tables, interleaved=config.interleaved)
    k = ops.rotary_embedding(k, *tables, interleaved=config.interleaved)
    out = ops.reshape(m.attend(layer, q, k, v), shape=(m.tokens, heads * width))
    return m.linear(out, f"{prefix}.o_proj", config.hidden_size, config.attention_bias)


def mlp(m: ModelContext, prefix: str, x: Value) -> Value:
    """The gated SiLU network: [tokens, hidden] to [tokens, hidden]."""
    config = m.config
    gate = m.linear(x, f"{prefix}.gate_proj", config.intermediate_size, config.mlp_bias)
    up = m.linear(x, f"{prefix}.up_proj", config.intermediate_size, config.mlp_bias)
    return m.linear(ops.silu_and_mul(gate, up), f"{prefix}.down_proj", config.hidden_size, config.mlp_bias)
