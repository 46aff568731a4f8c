"""The gated network of a decoder layer (Shazeer 2020)."""

from __future__ import annotations

from xinheng.core import ops
from xinheng.core.ir import Value

from .context import ModelContext


def gated_mlp(m: ModelContext, prefix: str, x: Value, inner: int, *, fused: bool = False) -> Value:
    """down(act(gate(x)) * up(x)): [tokens, hidden] to [tokens, hidden], `inner` wide between.

    The activation is the config's. `fused` says that gate and up are stored as one tensor, gate rows first.
    """
    config, down = m.config, f"{prefix}.down_proj"
    start, stop = m.columns_held(inner, [m.source(f"{down}.weight", config.hidden_size, inner)], down)
    if fused:
        gate = m.linear_rows(x, f"{prefix}.gate_up_proj", start, stop, 2 * inner)
        up = m.linear_rows(x, f"{prefix}.gate_up_proj", inner + start, inner + stop, 2 * inner)
    else:
        gate = m.linear_rows(x, f"{prefix}.gate_proj", start, stop, inner, config.mlp_bias)
        up = m.linear_rows(x, f"{prefix}.up_proj", start, stop, inner, config.mlp_bias)
    if config.hidden_act == "gelu_tanh":
        hidden = ops.gelu_and_mul(gate, up, approximate="tanh")
    else:
        hidden = ops.silu_and_mul(gate, up)
    return m.linear_columns(hidden, down, config.hidden_size, start, stop, inner, config.mlp_bias)
