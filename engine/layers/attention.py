"""Grouped-query attention with rotary positions (Ainslie et al. 2023)."""

from __future__ import annotations

from xinheng.core import ops
from xinheng.core.ir import Value

from .context import ModelContext


def grouped_query_attention(
    m: ModelContext, layer: int, x: Value, tables: tuple[Value, Value], *, head_norms: bool = False
) -> Value:
    """Self-attention of one layer: [tokens, hidden] to [tokens, hidden].

    `tables` are the rotary cos and sin; `head_norms` norms each head of q and k before they are rotated.
    """
    config, held, prefix = m.config, m.held, f"model.layers.{layer}.self_attn"
    width = config.head_dim

    def projected(name: str, start: int, stop: int, heads: int) -> Value:
        rows, bias = (start * width, stop * width, heads * width), config.attention_bias
        return m.heads(m.linear_rows(x, f"{prefix}.{name}", *rows, bias), stop - start)

    q = projected("q_proj", held.start, held.stop, config.num_heads)
    k = projected("k_proj", held.kv_start, held.kv_stop, config.num_kv_heads)
    v = projected("v_proj", held.kv_start, held.kv_stop, config.num_kv_heads)
    if head_norms:
        q, k = m.norm(q, f"{prefix}.q_norm"), m.norm(k, f"{prefix}.k_norm")
    q = ops.rotary_embedding(q, *tables, interleaved=config.interleaved)
    k = ops.rotary_embedding(k, *tables, interleaved=config.interleaved)
    out = ops.reshape(m.attend(layer, q, k, v), shape=(m.tokens, held.count * width))
    columns = held.start * width, held.stop * width, config.num_heads * width
    return m.linear_columns(out, f"{prefix}.o_proj", config.hidden_size, *columns, config.output_bias)
