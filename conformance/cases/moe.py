"""Cases of mixtures of experts: gating, sorting by expert, and products per expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xinheng.core.ir.dtype import float32

from ..case import Tier, case
from ..draw import MODERATE
from ..operands import Coded, Normal, Special, T, W, floats, gain, ints, normal, rng, special_rows
from .sizes import BATCHES, VIEWS

_SPREAD = ("normal", "uniform", "tiny")


def _gate(note: str, tokens: int, experts: int, *, bias: bool = False, **attributes: Any) -> None:
    """Random logits; the bias is as large as scores, so that it changes which experts are chosen."""
    offsets = gain(experts, scale=0.3, shift=0.0) if bias else None
    label = f"T{tokens}xE{experts}_{note.replace(' ', '-')}"
    case("moe_gating_topk", normal(tokens, experts), offsets, label=label, data=_SPREAD, **attributes)


for _score in ("softmax", "sigmoid"):
    for _experts, _k in ((8, 2), (16, 4), (60, 4), (64, 6), (128, 8), (257, 8)):
        _gate(f"{_score} {_k}", 33, _experts, k=_k, score=_score)
    _gate(f"{_score} bias", 33, 64, k=6, score=_score, bias=True)
    _gate(f"{_score} bias not renormalised", 33, 16, k=3, score=_score, bias=True, renormalise=False)
    _gate(f"{_score} bias scaled", 33, 16, k=3, score=_score, bias=True, scale=2.5)
    _gate(f"{_score} not renormalised", 9, 8, k=3, score=_score, renormalise=False)
    _gate(f"{_score} scaled", 9, 8, k=3, score=_score, renormalise=False, scale=0.5)
    for _rule in ("top2", "max"):
        _how: dict[str, Any] = {"score": _score, "group_score": _rule}
        _gate(f"{_score} groups {_rule}", 33, 16, k=4, groups=4, groups_kept=2, bias=True, **_how)
        _gate(f"{_score} many groups {_rule}", 33, 64, k=8, groups=8, groups_kept=4, bias=True, scale=2.5, **_how)
    _gate(f"{_score} one group kept", 9, 12, k=2, groups=4, groups_kept=1, score=_score)
    _gate(f"{_score} all groups kept", 9, 12, k=5, groups=3, groups_kept=3, score=_score)
for _tokens in BATCHES:
    _gate("step", _tokens, 32, k=4)
_gate("all", 3, 4, k=4)
_gate("one", 3, 6, k=1)
_gate("one expert", 3, 1, k=1)
_gate("empty", 0, 8, k=2)
case("moe_gating_topk", normal(33, 256, scale=3), k=8, label="T33xE256_peaked")
_TIES = floats(rng("tied").integers(-2, 3, (33, 16)) / 2)
_TIED = floats(rng("tied offsets").integers(0, 2, 16) / 4)
for _score in ("softmax", "sigmoid"):
    case("moe_gating_topk", _TIES, k=5, score=_score, label=f"ties-{_score}")
    case("moe_gating_topk", _TIES, _TIED, k=5, score=_score, label=f"ties-{_score}-bias")
    _how = {"k": 4, "score": _score, "groups": 4, "groups_kept": 2}
    case("moe_gating_topk", _TIES, label=f"ties-{_score}-groups", **_how)
    case("moe_gating_topk", floats(np.zeros((2, 16))), label=f"all-alike-{_score}", **_how)
_LOW = floats(rng("low offsets").uniform(-3, -1, 16))
case("moe_gating_topk", normal(9, 16), _LOW, label="low-bias-groups", data=_SPREAD, **_how)
case("moe_gating_topk", floats([[1.0, 2.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]]), k=3, label="ties")
_WIDE = floats([[80.0, -80.0, 0.0, 1.0]])
case("moe_gating_topk", _WIDE, k=4, score="sigmoid", renormalise=False, label="wide", special=True)


def _chosen(tokens: int, k: int, experts: int, unused: Sequence[int] = ()) -> T:
    """Different experts for each token, without some of them."""
    made = rng("experts", tokens, k, experts)
    there = np.array([e for e in range(experts) if e not in unused])
    return ints(np.array([made.permutation(there)[:k] for _ in range(tokens)]).reshape(tokens, k))


_EXPERTS = ints([[2, 0], [1, 2], [2, 4], [0, 2], [4, 1]])
_CHOICES: dict[str, tuple[T, int]] = {
    "plain": (_EXPERTS, 5),
    "unused experts": (_EXPERTS, 9),
    "one expert": (ints([[0], [0], [0]]), 1),
    "first and last unused": (_chosen(9, 2, 8, (0, 3, 7)), 8),
    "many": (_chosen(33, 8, 64), 64),
    "all to one": (ints(np.full((17, 1), 3)), 6),
    "one token": (_chosen(1, 4, 16), 16),
    "128 experts": (_chosen(7, 6, 128), 128),
    "empty": (ints(np.zeros((0, 2))), 3),
}


def _order(experts: T) -> T:
    return ints(np.argsort(experts.data.reshape(-1), kind="stable"))


def _weights(tokens: int, k: int) -> T:
    return T(rng("weights", tokens, k).uniform(0.1, 1.0, (tokens, k)), float32)


for _note, (_experts_of, _count) in _CHOICES.items():
    _tokens, _k = _experts_of.data.shape
    _label = _note.replace(" ", "-")
    for _width in (6, 129):
        case("moe_permute", normal(_tokens, _width), _experts_of, num_experts=_count, label=f"D{_width}_{_label}")
        _sorted = normal(_tokens * _k, _width), _order(_experts_of), _weights(_tokens, _k)
        case("moe_unpermute", *_sorted, label=f"D{_width}_{_label}", data=MODERATE)
case("moe_permute", ints([[1, 2], [3, 4]]), ints([[1, 0], [0, 1]]), num_experts=2, label="int32")
_order_of_all = ints(rng("order").permutation(16))
case("moe_unpermute", normal(16, 5), _order_of_all, _weights(2, 8), label="any-order")
case("moe_unpermute", normal(16, 2048), _order_of_all, _weights(2, 8), label="any-order-wide", data=MODERATE)
_ALL = _chosen(63, 2, 5)
case("moe_permute", special_rows(5), _ALL, num_experts=5, label="specials", special=True)
_order_of_all = ints(rng("order of specials").permutation(63))
case("moe_unpermute", special_rows(5), _order_of_all, _weights(21, 3), label="specials", special=True)
for _layout in VIEWS:
    case("moe_permute", normal(5, 33), _EXPERTS, num_experts=5, layout=_layout, label=_layout.value)
    case("moe_unpermute", normal(10, 33), _order(_EXPERTS), _weights(5, 2), layout=_layout, label=_layout.value)


def _stack(groups: int, rows: int, columns: int, scheme: str = "float32", role: str = "stack") -> W:
    shape = (groups, rows, columns)
    return W(Normal(shape, (role, *shape, scheme)), ((scheme, groups * rows),))


for _scheme in ("float32", "float16", "bfloat16", "q8_0", "q4_0", "int4_g32", "int8_row", "float8_e4m3_row"):
    case("grouped_linear", normal(7, 64), _stack(4, 5, 64, _scheme), ints([2, 0, 4, 1]), label=_scheme)
    case("grouped_linear", normal(9, 320), _stack(5, 33, 320, _scheme), ints([0, 3, 0, 6, 0]), label=f"{_scheme}_long")
    case("batched_linear", normal(3, 4, 64), _stack(4, 5, 64, _scheme), label=_scheme)
    case("batched_linear", normal(3, 4, 17), _stack(4, 17, 64, _scheme), transposed=True, label=f"{_scheme}_transposed")
for _scheme in ("q4_k", "q6_k", "mxfp4"):
    case("grouped_linear", normal(5, 512), Coded((3, 4, 512), _scheme), ints([1, 0, 4]), label=_scheme)
for _columns in (1, 31, 33, 129, 321):
    case("grouped_linear", normal(5, _columns), _stack(3, 4, _columns), ints([2, 2, 1]), label=f"K{_columns}")
    case("batched_linear", normal(2, 3, _columns), _stack(3, 4, _columns), label=f"K{_columns}")
case("grouped_linear", normal(5, 320), _stack(2, 3, 320), ints([0, 5]), label="all-in-the-last", data=MODERATE)
case("grouped_linear", normal(5, 320), _stack(2, 3, 320), ints([5, 0]), label="all-in-the-first")
case("grouped_linear", normal(0, 32), _stack(2, 3, 32), ints([0, 0]), label="empty")
case(
    "grouped_linear", normal(33, 2048), _stack(8, 96, 2048), ints([9, 0, 1, 4, 7, 2, 0, 10]), tier=Tier.FULL, label="L"
)
case("batched_linear", normal(0, 2, 32), _stack(2, 3, 32), label="empty")
_HEADS = Special(lambda s: np.reshape(special_rows(32).layout(s), (21, 3, 32)))
case("batched_linear", _HEADS, _stack(3, 5, 32), label="specials", special=True)
_COUNTS = ints([20, 0, 40, 3])
case("grouped_linear", special_rows(32), _stack(4, 5, 32), _COUNTS, label="specials", special=True)
case("batched_linear", normal(7, 3, 320), _stack(3, 33, 320), label="long", data=MODERATE)
for _layout in VIEWS:
    case("batched_linear", normal(3, 4, 33), _stack(4, 5, 33), layout=_layout, label=_layout.value)
    case("grouped_linear", normal(7, 33), _stack(4, 5, 33), ints([2, 0, 4, 1]), layout=_layout, label=_layout.value)


def _fused(
    note: str, experts: T, count: int, width: int, inner: int, scheme: str, x: Special | None = None, **how: Any
) -> None:
    gate, up = (_stack(count, inner, width, scheme, role) for role in ("gate", "up"))
    nets = gate, up, _stack(count, width, inner, scheme)
    rows = x or normal(len(experts.data), width, scale=width**-0.5)
    case("fused_moe", rows, _weights(*experts.data.shape), experts, *nets, label=note, **how)


for _scheme in ("float32", "bfloat16", "q8_0", "int4_g32"):
    _fused(_scheme, ints([[3, 1], [0, 3], [1, 0]]), 4, 64, 32, _scheme, seeds=(2, 8))
    _fused(f"{_scheme}_unused", _chosen(9, 3, 8, (0, 7)), 8, 96, 64, _scheme)
_fused("one_choice", _chosen(5, 1, 4), 4, 33, 17, "float32", data=("normal", "uniform"))
_fused("one_token", _chosen(1, 4, 16), 16, 64, 32, "float32")
_fused("empty", ints(np.zeros((0, 1))), 2, 8, 4, "float32")
_fused("specials", _chosen(63, 2, 4), 4, 8, 6, "float32", special_rows(8), special=True)
_fused("wide", _chosen(33, 4, 16), 16, 512, 256, "bfloat16", tier=Tier.FULL)
