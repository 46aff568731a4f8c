"""A mixture of experts in place of the gated network."""

from __future__ import annotations

from xinheng.core import ops
from xinheng.core.hal.weight import WeightSource
from xinheng.core.ir import TensorType, Value
from xinheng.core.ir.dtype import float32

from .config import ExpertConfig
from .context import ModelContext
from .mlp import gated_mlp


def mixture_of_experts(m: ModelContext, prefix: str, x: Value) -> Value:
    """The chosen experts of each token, and the shared one if there is one: [tokens, hidden] to [tokens, hidden]."""
    config, moe = m.config, m.config.moe
    assert moe is not None
    router = m.weight(f"{prefix}.gate.weight", moe.experts, config.hidden_size)
    # routers choose between close scores: they are computed in float32 whatever the activations are
    logits = ops.linear(ops.cast(x, dtype=float32), router)
    bias = None
    if moe.selection_bias:
        bias = m.parameter(f"{prefix}.gate.e_score_correction_bias", TensorType(float32, (moe.experts,)))
    weights, experts = ops.moe_gating_topk(
        logits,
        bias,
        k=moe.chosen,
        score=moe.score,
        renormalise=moe.renormalise,
        scale=moe.scale,
        groups=moe.groups,
        groups_kept=moe.groups_kept,
        group_score=moe.group_score,
    )
    out = m.summed(ops.fused_moe(x, weights, experts, *_experts(m, f"{prefix}.experts", moe)))
    if moe.shared_inner:
        out = ops.add(out, gated_mlp(m, f"{prefix}.shared_experts", x, moe.shared_inner))
    return out


def _experts(m: ModelContext, prefix: str, moe: ExpertConfig) -> tuple[Value, Value, Value]:
    """Weights gate, up and down of all experts, of each the part of its inner width that this rank holds."""
    hidden = m.config.hidden_size

    def sources(name: str, rows: int, columns: int) -> list[WeightSource]:
        return [m.source(f"{prefix}.{i}.{name}.weight", rows, columns) for i in range(moe.experts)]

    downs = sources("down_proj", hidden, moe.inner)
    start, stop = m.columns_held(moe.inner, downs, prefix)
    cut = "" if stop - start == moe.inner else f"{start}:{stop}"
    gate, up = (
        m.stacked(
            f"{prefix}.*.{name}.weight" + (cut and f"[{cut}]"),
            [source.rows(start, stop) for source in sources(name, moe.inner, hidden)],
        )
        for name in ("gate_proj", "up_proj")
    )
    down = m.stacked(
        f"{prefix}.*.down_proj.weight" + (cut and f"[:][{cut}]"), [source.columns(start, stop) for source in downs]
    )
    return gate, up, down
