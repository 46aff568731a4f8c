"""Multi-head latent attention, computed in absorbed form so that only latents are cached (DeepSeek-V2, section 2.1)."""

from __future__ import annotations

from xinheng.core import ops
from xinheng.core.ir import Value

from .context import ModelContext


def latent_attention(m: ModelContext, layer: int, x: Value, tables: tuple[Value, Value]) -> Value:
    """Self-attention of one layer: [tokens, hidden] to [tokens, hidden].

    The key half of `kv_b_proj` multiplies the queries, its value half the outputs; keys and values of single heads are
    never made.
    """
    config, mla, prefix = m.config, m.config.mla, f"model.layers.{layer}.self_attn"
    assert mla is not None
    held, heads, width = m.held, config.num_heads, mla.nope_dim + mla.rope_dim
    queries = held.start * width, held.stop * width, heads * width
    if mla.query_rank is None:
        q = m.linear_rows(x, f"{prefix}.q_proj", *queries)
    else:
        compressed = m.linear(x, f"{prefix}.q_a_proj", mla.query_rank, config.attention_bias)
        q = m.linear_rows(m.norm(compressed, f"{prefix}.q_a_layernorm", mla.norm_eps), f"{prefix}.q_b_proj", *queries)
    q = ops.reshape(q, shape=(m.tokens, held.count, width))
    q_nope, q_rope = ops.split(q, sizes=(mla.nope_dim, mla.rope_dim), axis=2)
    packed = m.linear(x, f"{prefix}.kv_a_proj_with_mqa", mla.latent_dim + mla.rope_dim, config.attention_bias)
    latent, k_rope = ops.split(packed, sizes=(mla.latent_dim, mla.rope_dim), axis=1)
    latent = m.norm(latent, f"{prefix}.kv_a_layernorm", mla.norm_eps)
    k_rope = ops.reshape(k_rope, shape=(m.tokens, 1, mla.rope_dim))
    q_rope = ops.rotary_embedding(q_rope, *tables, interleaved=config.interleaved)
    k_rope = ops.rotary_embedding(k_rope, *tables, interleaved=config.interleaved)
    k_rope = ops.reshape(k_rope, shape=(m.tokens, mla.rope_dim))
    name, rows = f"{prefix}.kv_b_proj.weight", mla.nope_dim + mla.value_dim
    keys = m.head_rows(name, heads, rows, 0, mla.nope_dim, mla.latent_dim)
    values = m.head_rows(name, heads, rows, mla.nope_dim, rows, mla.latent_dim)
    q_latent = ops.batched_linear(q_nope, keys, transposed=True)
    out = ops.batched_linear(m.attend_latent(layer, q_latent, q_rope, latent, k_rope), values)
    out = ops.reshape(out, shape=(m.tokens, held.count * mla.value_dim))
    columns = held.start * mla.value_dim, held.stop * mla.value_dim, heads * mla.value_dim
    return m.linear_columns(out, f"{prefix}.o_proj", config.hidden_size, *columns, config.attention_bias)
