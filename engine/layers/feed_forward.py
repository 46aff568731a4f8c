"""The second half of a decoder layer: one gated network, or a mixture of experts."""

from __future__ import annotations

from xinheng.core.ir import Value

from .context import ModelContext
from .mlp import gated_mlp
from .moe import mixture_of_experts


def feed_forward(m: ModelContext, layer: int, x: Value) -> Value:
    """Experts where the config gives this layer any, else the gated network: [tokens, hidden] to [tokens, hidden]."""
    config, prefix = m.config, f"model.layers.{layer}.mlp"
    if config.moe is not None and config.moe.layers[layer]:
        return mixture_of_experts(m, prefix, x)
    return gated_mlp(m, prefix, x, config.intermediate_size)
