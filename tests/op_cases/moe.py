"""Cases of mixtures of experts: gating, sorting by expert, products per expert, and the norms around them."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import float32

from .case import F, T, W, case, floats, ints, normal, rng


def _gate(note: str, tokens: int, experts: int, *, bias: bool = False, **attributes: Any) -> None:
    """Logits far enough apart that no rounding changes the choice."""
    made = rng("gate", note)
    logits = np.stack([made.permutation(np.linspace(-3, 3, experts)) for _ in range(tokens)] or [np.zeros(experts)])
    offsets = floats(made.permutation(np.linspace(0, 0.0625, experts))) if bias else None
    case("moe_gating_topk", F(logits[:tokens]), offsets, note=note, **attributes)


_gate("softmax", 5, 8, k=2)
_gate("all", 3, 4, k=4)
_gate("one", 3, 6, k=1)
_gate("not renormalised", 4, 8, k=3, renormalise=False)
_gate("scaled", 4, 8, k=3, scale=2.5)
_gate("sigmoid", 5, 8, k=2, score="sigmoid", bias=True)
_gate("groups", 6, 16, k=4, score="sigmoid", groups=4, groups_kept=2, bias=True, scale=2.5)
_gate("best of groups", 6, 12, k=3, groups=3, groups_kept=2, group_score="max")
_gate("one group kept", 6, 12, k=2, groups=4, groups_kept=1)
_gate("empty", 0, 8, k=2)
case("moe_gating_topk", floats([[1.0, 2.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]]), k=3, note="ties")
case("moe_gating_topk", floats([[0.0] * 8]), k=4, groups=4, groups_kept=2, note="tied groups")
case(
    "moe_gating_topk",
    floats([[80.0, -80.0, 0.0, 1.0]]),
    k=4,
    score="sigmoid",
    renormalise=False,
    note="wide",
    special=True,
)

_EXPERTS = ints([[2, 0], [1, 2], [2, 4], [0, 2], [4, 1]])
case("moe_permute", normal(5, 6), _EXPERTS, num_experts=5)
case("moe_permute", normal(5, 1), _EXPERTS, num_experts=9, note="unused experts")
case("moe_permute", normal(3, 4), ints([[0], [0], [0]]), num_experts=1, note="one expert")
case("moe_permute", normal(0, 4), ints(np.zeros((0, 2))), num_experts=3, note="empty")
case("moe_permute", ints([[1, 2], [3, 4]]), ints([[1, 0], [0, 1]]), num_experts=2, note="int32")


def _order(experts: T) -> T:
    return ints(np.argsort(experts.data.reshape(-1), kind="stable"))


def _weights(tokens: int, k: int) -> T:
    return T(rng("weights", tokens, k).uniform(0.1, 1.0, (tokens, k)), float32)


case("moe_unpermute", normal(10, 6), _order(_EXPERTS), _weights(5, 2))
case("moe_unpermute", normal(4, 33), ints([2, 0, 3, 1]), _weights(4, 1), note="one expert each")
case("moe_unpermute", normal(16, 5), ints(rng("order").permutation(16)), _weights(2, 8), note="many")
case("moe_unpermute", normal(0, 4), ints([]), _weights(0, 2), note="empty")


def _stack(groups: int, rows: int, columns: int, scheme: str = "float32") -> W:
    return W(
        rng("stack", groups, rows, columns, scheme).normal(0, 1, (groups, rows, columns)), ((scheme, groups * rows),)
    )


for _scheme in ("float32", "bfloat16", "q8_0"):
    case("grouped_linear", normal(7, 32), _stack(4, 5, 32, _scheme), ints([2, 0, 4, 1]), note=_scheme)
    case("batched_linear", normal(3, 4, 32), _stack(4, 5, 32, _scheme), note=_scheme)
    case("batched_linear", normal(3, 4, 5), _stack(4, 5, 32, _scheme), transposed=True, note=f"{_scheme} transposed")
    _nets = (_stack(4, 32, 64, _scheme), _stack(4, 32, 64, _scheme), _stack(4, 64, 32, _scheme))
    case("fused_moe", normal(3, 64, scale=0.3), _weights(3, 2), ints([[3, 1], [0, 3], [1, 0]]), *_nets, note=_scheme)
case("grouped_linear", normal(5, 320), _stack(2, 3, 320), ints([0, 5]), note="long")
case("grouped_linear", normal(0, 32), _stack(2, 3, 32), ints([0, 0]), note="empty")
case("batched_linear", normal(0, 2, 32), _stack(2, 3, 32), note="empty")
case("batched_linear", normal(1, 1, 320), _stack(1, 3, 320), note="long")
case(
    "fused_moe",
    normal(0, 8),
    _weights(0, 1),
    ints(np.zeros((0, 1))),
    _stack(2, 4, 8),
    _stack(2, 4, 8),
    _stack(2, 8, 4),
    note="empty",
)

case("add_rms_norm", normal(3, 64), normal(3, 64), normal(64, shift=1.0), eps=1e-6)
case("add_rms_norm", normal(2, 5, 33), normal(2, 5, 33), normal(33), eps=1e-5, note="odd")
case("add_rms_norm", normal(0, 8), normal(0, 8), normal(8), eps=1e-6, note="empty")
case("add_rms_norm", normal(7), normal(7), normal(7), eps=1e-6, note="vector")
case("layer_norm", normal(3, 64, shift=2.0), normal(64, shift=1.0), normal(64), eps=1e-5)
case("layer_norm", normal(2, 5, 33), eps=1e-6, note="plain")
case("layer_norm", normal(4, 33), normal(33), eps=1e-12, note="weight only")
case("layer_norm", normal(4, 33), None, normal(33), eps=1e-5, note="bias only")
case("layer_norm", normal(0, 8), normal(8), normal(8), eps=1e-6, note="empty")
case("layer_norm", floats([[3.0, 3.0, 3.0], [1.0, -1.0, 0.0]]), eps=1e-5, note="constant row", special=True)
