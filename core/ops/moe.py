"""Mixtures of experts: choosing experts, sorting tokens by expert, and the products of each expert."""

from __future__ import annotations

import numpy as np

from ..ir import numeric
from ..ir.dim import Dim, require_equal
from ..ir.dtype import float32, int32
from ..ir.op import Tensor, Tolerance, Weight, op, require
from ..ir.types import TensorType, WeightType
from .contraction import weight_stack
from .elementwise import add, div, in_dtype, lt, mul, narrowed, sigmoid, where, widened
from .movement import gather, index_select, integer, reshape
from .nn import silu_and_mul
from .reduction import softmax, sum, topk


@op(tolerance=Tolerance.SELECTION)
def moe_gating_topk(
    logits: Tensor,
    bias: Tensor | None = None,
    *,
    k: int,
    score: str = "softmax",
    renormalise: bool = True,
    scale: float = 1.0,
    groups: int = 1,
    groups_kept: int = 1,
    group_score: str = "top2",
) -> Tensor:
    """The weights of the k experts of each token, and which they are: float32 [tokens, k] and int32 [tokens, k].

    Scores are the softmax or the sigmoid of logits [tokens, experts], in at least float32; NaN is not for here. Experts
    are chosen by score plus `bias` [experts] (DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.2), in descending order,
    equal ones by index. With `groups` > 1 the experts form that many runs of equal length, and only the `groups_kept`
    runs stay whose sum of the best two choices ("top2") or best choice ("max") is largest. Weights are the scores of
    the chosen, without the bias; `renormalise` divides them by their sum plus 1e-20, then `scale` multiplies them.
    """
    scores = gating_scores(logits, score)
    choice = scores if bias is None else scores + bias
    if groups > 1:
        value = group_values(choice, groups, group_score)
        rank = np.argsort(np.argsort(-value, axis=-1, kind="stable"), axis=-1, kind="stable")
        choice = np.where(np.repeat(rank < groups_kept, choice.shape[-1] // groups, axis=-1), choice, -np.inf)
    experts = np.argsort(-choice, axis=-1, kind="stable")[..., :k]
    return gating_weights(scores, experts, renormalise, scale), experts.astype(np.int32)


def gating_scores(logits: Tensor, score: str) -> Tensor:
    """The scores of all experts, [tokens, experts]."""
    return softmax.reference(logits) if score == "softmax" else numeric.sigmoid(logits)


def group_values(choice: Tensor, groups: int, rule: str) -> Tensor:
    """What groups of experts are chosen by, [tokens, groups]."""
    inside = np.reshape(choice, (choice.shape[0], groups, choice.shape[1] // groups))
    ordered = np.take_along_axis(inside, np.argsort(-inside, axis=-1, kind="stable"), axis=-1)
    return np.sum(ordered[..., : 2 if rule == "top2" else 1], axis=-1)


def gating_weights(scores: Tensor, experts: Tensor, renormalise: bool, scale: float) -> Tensor:
    """The weights of chosen experts, [tokens, k]."""
    weights = np.take_along_axis(scores, experts, axis=-1)
    if renormalise:
        weights = weights / (np.sum(weights, axis=-1, keepdims=True) + 1e-20)
    return weights * scale


@moe_gating_topk.infer
def _(
    logits: TensorType,
    bias: TensorType | None,
    *,
    k: int,
    score: str,
    renormalise: bool,
    scale: float,
    groups: int,
    groups_kept: int,
    group_score: str,
) -> tuple[TensorType, TensorType]:
    require(logits.rank == 2 and logits.dtype.is_float, f"logits must be float [tokens, experts], not {logits}")
    experts = logits.shape[1]
    require(isinstance(experts, int) and 0 < k <= experts, f"k is {k}, there are {experts} experts")
    require(bias is None or bias.shape == (experts,), f"bias must be [{experts}], not {bias}")
    require(score in ("softmax", "sigmoid"), f"score must be 'softmax' or 'sigmoid', not {score!r}")
    require(group_score in ("top2", "max"), f"group_score must be 'top2' or 'max', not {group_score!r}")
    assert isinstance(experts, int)
    size = experts // groups if groups > 0 and experts % groups == 0 else 0
    require(size > 0, f"{experts} experts do not form {groups} groups")
    require(
        0 < groups_kept <= groups and k <= groups_kept * size, f"{groups_kept} groups of {size} do not hold {k} experts"
    )
    require(groups == 1 or group_score == "max" or size >= 2, f"groups of {size} expert have no best two")
    shape = (logits.shape[0], k)
    return TensorType(float32, shape), TensorType(int32, shape)


@moe_gating_topk.decompose
def _(
    logits: Tensor,
    bias: Tensor | None,
    *,
    k: int,
    score: str,
    renormalise: bool,
    scale: float,
    groups: int,
    groups_kept: int,
    group_score: str,
) -> Tensor:
    wide = widened(logits)
    tokens, experts = logits.shape
    scores = softmax(wide) if score == "softmax" else sigmoid(wide)
    choice = scores if bias is None else add(scores, narrowed(bias, wide))
    if groups > 1:
        inside = reshape(choice, shape=(tokens, groups, experts // groups))
        best, _ = topk(inside, k=2 if group_score == "top2" else 1)
        value = sum(best, axis=-1)
        _, order = topk(value, k=groups)
        rank = ranks_of(order, groups)
        inside = where(reshape(lt(rank, groups_kept), shape=(tokens, groups, 1)), inside, -np.inf)
        choice = reshape(inside, shape=(tokens, experts))
    _, chosen = topk(choice, k=k)
    weights = gather(scores, chosen, axis=-1)
    if renormalise:
        weights = div(weights, add(sum(weights, axis=-1, keepdims=True), 1e-20))
    return in_dtype(mul(weights, scale), float32), chosen


def ranks_of(order: Tensor, size: int) -> Tensor:
    """The rank of each index in a permutation along the last axis: its inverse, by sorting the permutation."""
    _, ranks = topk(mul(order, -1), k=size)
    return ranks


@op(tolerance=Tolerance.EXACT)
def moe_permute(x: Tensor, experts: Tensor, *, num_experts: int) -> Tensor:
    """Rows of x [tokens, width] once per chosen expert, sorted by expert: [tokens * k, width], and two int32 vectors.

    experts is [tokens, k], its elements from 0 to `num_experts` - 1. The second result, order [tokens * k], says which
    flat choice (token * k + j) each row is, in ascending order within an expert; the third, counts [num_experts], says
    how many rows each expert has (not where they end).
    """
    flat = np.reshape(np.asarray(experts), -1)
    order = np.argsort(flat, kind="stable")
    counts = np.sum(flat[:, None] == np.arange(num_experts), axis=0)
    return np.take(x, order // experts.shape[1], axis=0), order.astype(np.int32), counts.astype(np.int32)


@moe_permute.infer
def _(x: TensorType, experts: TensorType, *, num_experts: int) -> tuple[TensorType, TensorType, TensorType]:
    integer(experts, "experts")
    require(x.rank == 2 and experts.rank == 2, f"needs [tokens, width] and [tokens, k], not {x} and {experts}")
    require(num_experts > 0, f"num_experts must be positive, is {num_experts}")
    require_equal(x.shape[0], experts.shape[0], "x and experts have different numbers of tokens")
    rows: Dim = x.shape[0] * experts.shape[1]
    return (
        TensorType(x.dtype, (rows, x.shape[1])),
        TensorType(int32, (rows,)),
        TensorType(int32, (num_experts,)),
    )


@op(tolerance=Tolerance.REDUCTION)
def moe_unpermute(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of the rows of each token: [tokens * k, width], sorted by `moe_permute`, to [tokens, width].

    `order` int32 [tokens * k] is the second result of `moe_permute`, weights are float32 [tokens, k]. Sums run over the
    choices in their order, in at least float32, rounded once.
    """
    place = np.argsort(np.asarray(order), kind="stable")
    chosen = np.reshape(np.take(rows, place, axis=0), (*weights.shape, rows.shape[-1]))
    return np.sum(chosen * np.expand_dims(weights, -1), axis=1)


@moe_unpermute.infer
def _(rows: TensorType, order: TensorType, weights: TensorType) -> TensorType:
    integer(order, "order", 1)
    require(rows.rank == 2 and weights.rank == 2, f"needs [rows, width] and [tokens, k], not {rows} and {weights}")
    require(rows.dtype.is_float, f"rows must be floats, not {rows.dtype}")
    require(weights.dtype == float32, f"weights must be float32, not {weights.dtype}")
    require_equal(rows.shape[0], weights.shape[0] * weights.shape[1], f"{rows} has not one row per choice of {weights}")
    require_equal(rows.shape[0], order.shape[0], "order has not one element per row")
    return TensorType(rows.dtype, (weights.shape[0], rows.shape[1]))


@moe_unpermute.decompose
def _(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    tokens, k = weights.shape
    width = rows.shape[1]
    _, place = topk(mul(order, -1), k=order.shape[0])
    chosen = reshape(widened(index_select(rows, place)), shape=(tokens, k, width))
    total = sum(mul(chosen, narrowed(reshape(weights, shape=(tokens, k, 1)), chosen)), axis=1)
    return narrowed(total, rows)


@op(tolerance=Tolerance.CONTRACTION)
def grouped_linear(x: Tensor, weight: Weight, counts: Tensor) -> Tensor:
    """Rows of x times the transposed weight of their group: [rows, columns] to [rows, out].

    The weight is [groups, out, columns]. The rows of x are sorted by group; `counts` int32 [groups] says how many each
    group has (not where they end), and adds up to the rows of x. Accumulated in at least float32, rounded once.
    """
    ends = np.cumsum(np.asarray(counts))
    pieces = [
        np.matmul(x[end - count : end], np.swapaxes(weight[group], -1, -2))
        for group, (end, count) in enumerate(zip(ends.tolist(), np.asarray(counts).tolist(), strict=True))
    ]
    return np.concatenate(pieces, axis=0)


@grouped_linear.infer
def _(x: TensorType, weight: WeightType, counts: TensorType) -> TensorType:
    integer(counts, "counts", 1)
    groups, rows, columns = weight_stack(weight)
    require(x.rank == 2 and x.dtype.is_float, f"x must be float [rows, columns], not {x}")
    require_equal(x.shape[1], columns, f"{x} does not fit {weight}")
    require_equal(counts.shape[0], groups, f"counts has not one element per group of {weight}")
    return TensorType(x.dtype, (x.shape[0], rows))


@op(tolerance=Tolerance.CONTRACTION)
def fused_moe(x: Tensor, weights: Tensor, experts: Tensor, gate: Weight, up: Weight, down: Weight) -> Tensor:
    """The weighted sum of gated SiLU networks chosen per token: [tokens, width] to [tokens, width].

    weights float32 [tokens, k] and experts int32 [tokens, k] come from `moe_gating_topk`; gate and up are
    [experts, inner, width], down is [experts, width, inner]: down (silu(gate x) * up x). Products, activations and the
    result of each expert may be rounded to the dtype of x, or kept wider, before the sum.
    """
    rows, order, counts = moe_permute.reference(x, experts, num_experts=gate.shape[0])
    gated, lifted = (numeric.point(grouped_linear.reference(rows, w, counts), "products") for w in (gate, up))
    inner = numeric.point(silu_and_mul.reference(gated, lifted), "inner")
    outer = numeric.point(grouped_linear.reference(inner, down, counts), "outer")
    return moe_unpermute.reference(outer, order, weights)


@fused_moe.infer
def _(
    x: TensorType, weights: TensorType, experts: TensorType, gate: WeightType, up: WeightType, down: WeightType
) -> TensorType:
    integer(experts, "experts")
    groups, inner, width = weight_stack(gate)
    require(up.shape == gate.shape, f"gate {gate} and up {up} differ in shape")
    require(down.shape == (groups, width, inner), f"down must be [{groups}, {width}, {inner}], not {down}")
    require(x.rank == 2 and x.dtype.is_float, f"x must be float [tokens, width], not {x}")
    require_equal(x.shape[0], experts.shape[0], "x and experts have different numbers of tokens")
    require_equal(x.shape[1], width, f"{x} does not fit {gate}")
    require(
        weights.dtype == float32 and weights.shape == experts.shape, f"{weights} and {experts} do not belong together"
    )
    return x


@fused_moe.decompose
def _(x: Tensor, weights: Tensor, experts: Tensor, gate: Weight, up: Weight, down: Weight) -> Tensor:
    rows, order, counts = moe_permute(x, experts, num_experts=gate.type.shape[0])
    inner = silu_and_mul(grouped_linear(rows, gate, counts), grouped_linear(rows, up, counts))
    return moe_unpermute(grouped_linear(inner, down, counts), order, weights)
