"""Mutants of mixtures of experts: gating, sorting, sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import bfloat16, float16, float32, round_to
from xinheng.core.ir.numeric import sigmoid
from xinheng.core.ops import OPSET

from .mutant import faulty, given, having, operand, saying

SINGLE = (float32, float16)


def _scores(logits: Any, score: str, fault: str) -> Any:
    if fault == "other score":
        score = "sigmoid" if score == "softmax" else "softmax"
    if score == "sigmoid":
        return sigmoid(logits)
    z = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return z / np.sum(z, axis=-1, keepdims=True)


def _masked(choice: Any, groups: int, kept: int, rule: str, fault: str) -> Any:
    """Choices outside the kept groups at -inf."""
    tokens, experts = choice.shape
    inside = np.reshape(choice, (tokens, groups, experts // groups))
    best = {"top2": 2, "max": 1}[rule]
    best = {"group by best": 1, "group by best two": 2}.get(fault, best)
    value = np.sum(-np.sort(-inside, axis=-1)[..., :best], axis=-1)
    if fault == "group by mean":
        value = np.mean(inside, axis=-1)
    rank = np.argsort(np.argsort(-value, axis=-1, kind="stable"), axis=-1, kind="stable")
    more = {"one group more": 1, "worst groups": 0}.get(fault, 0)
    mask = rank >= groups - kept if fault == "worst groups" else rank < kept + more
    filler = np.float32(0 if fault == "mask of 0" else -np.inf)
    return np.where(np.repeat(mask, experts // groups, axis=-1), choice, filler)


def _gating(
    logits: Any, bias: Any = None, *, k: int, score: str = "softmax", renormalise: bool = True, scale: float = 1.0,
    groups: int = 1, groups_kept: int = 1, group_score: str = "top2", fault: str,
) -> Any:  # fmt: skip
    scores = _scores(logits, score, fault)
    choice = scores if bias is None or fault == "bias ignored" else scores + bias
    if groups > 1 and fault != "groups ignored":
        choice = _masked(choice, groups, groups_kept, group_score, fault)
    order = np.argsort(-choice, axis=-1, kind="stable")
    if fault == "ties backwards":
        backwards = np.argsort(-np.flip(choice, axis=-1), axis=-1, kind="stable")
        order = choice.shape[-1] - 1 - backwards
    experts = order[..., 1 : k + 1] if fault == "second best" and k < order.shape[-1] else order[..., :k]
    experts = np.flip(experts, axis=-1) if fault == "ascending" else experts
    weights = np.take_along_axis(choice if fault == "bias in weights" else scores, experts, axis=-1)
    if renormalise and fault != "not renormalised":
        weights = weights / (np.sum(weights, axis=-1, keepdims=True) + 1e-20)
    if fault == "always renormalised" and not renormalise:
        weights = weights / np.sum(weights, axis=-1, keepdims=True)
    return weights * (1.0 if fault == "scale ignored" else scale), np.asarray(experts).astype(np.int32)


faulty(
    "moe_gating_topk",
    _gating,
    {
        "bias in weights": "returns scores with the bias as weights",
        "bias ignored": "chooses without the bias",
        "not renormalised": "does not divide weights by their sum",
        "always renormalised": "divides weights by their sum unasked",
        "ties backwards": "takes the higher index of equal scores",
        "ascending": "returns the best expert last",
        "second best": "leaves the best expert out",
        "scale ignored": "never scales",
        "other score": "takes the sigmoid for the softmax, or the other way round",
        "groups ignored": "chooses among all groups",
        "worst groups": "keeps the groups with the smallest sums",
        "group by best": "ranks groups by their best expert where two are asked for",
        "group by best two": "ranks groups by two experts where the best is asked for",
        "group by mean": "ranks groups by their mean",
        "one group more": "keeps one group too many",
        "mask of 0": "masks groups with 0, which a negative choice is below",
    },
)


def _permute(x: Any, experts: Any, *, num_experts: int, fault: str) -> Any:
    flat = np.reshape(np.asarray(experts), -1)
    order = np.argsort(flat, kind="stable")
    if fault == "order of choices":
        order = np.lexsort((-np.arange(flat.size), flat))
    counts = np.bincount(flat, minlength=num_experts)[:num_experts]
    ends = {"counts as ends": np.cumsum(counts), "empty counted": np.maximum(counts, 1)}
    k = experts.shape[1]
    source = order % max(x.shape[0], 1) if fault == "rows by remainder" else order // k
    place = np.argsort(order, kind="stable") if fault == "inverse order" else order
    return np.take(x, source, axis=0), place.astype(np.int32), ends.get(fault, counts).astype(np.int32)


faulty(
    "moe_permute",
    _permute,
    {
        "order of choices": "reverses the choices of one expert",
        "counts as ends": "returns where experts end",
        "empty counted": "counts one row for experts without rows",
        "rows by remainder": "takes the token of a choice for its place in the row",
        "inverse order": "returns where each choice went",
    },
)


def _unpermute(rows: Any, order: Any, weights: Any, *, fault: str) -> Any:
    order = np.asarray(order)
    place = order if fault == "order not inverted" else np.argsort(order, kind="stable")
    chosen = np.reshape(np.take(rows, place, axis=0), (*weights.shape, rows.shape[-1]))
    if fault == "weights ignored":
        weights = weights * 0 + 1
    if fault == "weights in bf16":
        weights = round_to(weights, bfloat16).astype(np.float32)
    if fault == "weights sorted":
        weights = np.reshape(np.take(np.reshape(weights, -1), order), weights.shape)
    if fault == "last choice" and weights.shape[1] > 1:
        chosen, weights = chosen[:, :-1], weights[:, :-1]
    return np.sum(chosen * np.expand_dims(weights, -1), axis=1)


faulty(
    "moe_unpermute",
    _unpermute,
    {
        "order not inverted": "gathers by the order instead of its inverse",
        "weights ignored": "adds rows without weights",
        "weights in bf16": "keeps weights in bfloat16",
        "weights sorted": "takes weights in the order of rows",
        "last choice": "leaves the last choice out",
    },
    only={"weights in bf16": SINGLE},
)


def _choices(x: Any, weights: Any, experts: Any, nets: tuple[Any, ...]) -> list[Any]:
    """What each choice of an expert makes of inputs that are weighted before."""
    ones, columns = weights[:, :1] * 0 + 1, range(experts.shape[1])
    fused = OPSET["fused_moe"].reference
    return [fused(x * weights[:, j : j + 1], ones, experts[:, j : j + 1], *nets) for j in columns]


def _fused(x: Any, weights: Any, experts: Any, gate: Any, up: Any, down: Any, *, fault: str) -> Any:
    if fault == "gate and up exchanged":
        gate, up = up, gate
    if fault == "weights ignored":
        weights = weights * 0 + 1
    if fault == "renormalised":
        weights = weights / np.sum(weights, axis=-1, keepdims=True)
    if fault == "weights on inputs":
        return sum(_choices(x, weights, experts, (gate, up, down)))
    if fault == "next expert":
        experts = (np.asarray(experts) + 1) % gate.shape[0]
    if fault == "last choice" and experts.shape[1] > 1:
        weights, experts = weights[:, :-1], experts[:, :-1]
    return OPSET["fused_moe"].reference(x, weights, experts, gate, up, down)


faulty(
    "fused_moe",
    _fused,
    {
        "gate and up exchanged": "takes the gate for the value",
        "weights ignored": "adds experts without weights",
        "renormalised": "divides weights by their sum",
        "weights on inputs": "weights what goes into an expert instead of what comes out",
        "next expert": "counts experts from one",
        "last choice": "leaves the last expert of a token out",
    },
)
given(
    "moe_gating_topk",
    "logits in bf16",
    "cuts logits to bfloat16",
    lambda call: having(call, logits=round_to(operand(call, "logits"), bfloat16)),
    SINGLE,
)
given("moe_gating_topk", "scale twice", "scales twice", lambda call: _scaled_twice(call))


def _scaled_twice(call: Any) -> Any:
    return saying(call, scale=call.attributes.get("scale", 1.0) ** 2)
