"""Ops whose results are choices: whether a choice is admissible, and what the other results must be, given the choice.

Where scores nearly tie, correct kernels choose differently, so the choice of the reference is not the only right one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from xinheng.core.ir.dtype import bool_
from xinheng.core.ops.moe import gating_scores, gating_weights, group_values

from .bounds.bounded import Bounded
from .bounds.rules import Rules
from .bounds.sampling import admits_rejection, admits_sample
from .bounds.selection import Mask, admits_grouped_top_k, admits_top_k
from .call import Call


@dataclass(frozen=True)
class Choice:
    """What a kernel chose.

    Attributes:
        admissible: for which rows a correct kernel may choose so.
        expected: all results of the op, those that are not chosen with the bounds that belong to this choice.
    """

    admissible: Mask
    expected: tuple[Any, ...]


Judge = Callable[[Call, tuple[Any, ...], Rules], Choice | None]
"""The choice in the results of a call; None if the results of the reference are the only right ones."""


def _uncertain(x: Any) -> bool:
    """Whether anything is left open by operands themselves, such as by subnormals that a device may read as zero."""
    return isinstance(x, Bounded) and bool(x.e.any())


def _argmax(call: Call, made: tuple[Any, ...], rules: Rules) -> Choice | None:
    (x,), (chosen,) = call.operands(rules), made
    if not _uncertain(x):
        return None
    scores: Any = np.moveaxis(x, call.attributes.get("axis", -1), -1)
    return Choice(admits_top_k(scores, chosen[..., None]), made)


def _topk(call: Call, made: tuple[Any, ...], rules: Rules) -> Choice | None:
    (x,), (_, chosen) = call.operands(rules), made
    if not _uncertain(x):
        return None
    return Choice(admits_top_k(x, chosen), (np.take_along_axis(x, _inside(chosen, x), axis=-1), chosen))


def _gating(call: Call, made: tuple[Any, ...], rules: Rules) -> Choice:
    attributes: dict[str, Any] = {"score": "softmax", "renormalise": True, "scale": 1.0, "groups": 1, "groups_kept": 1}
    attributes |= {"group_score": "top2", **call.attributes}
    given: tuple[Any, ...] = (*call.operands(rules), None)
    logits, bias = given[:2]
    scores: Any = gating_scores(logits, attributes["score"])
    choice: Any = scores if bias is None else scores + bias
    keys = logits.v if bias is None else logits.v + 1j * bias.v
    chosen, keys, groups = made[1], keys[..., None], attributes["groups"]
    if groups == 1:
        ok = admits_top_k(choice, chosen, keys)
    else:
        values, group_keys = _groups(choice, keys, groups, attributes["group_score"])
        ok = admits_grouped_top_k(choice, values, attributes["groups_kept"], chosen, keys, group_keys)
    weights = gating_weights(scores, _inside(chosen, scores), attributes["renormalise"], attributes["scale"])
    return Choice(ok, (weights, chosen))


def _groups(choice: Bounded, keys: Any, groups: int, rule: str) -> tuple[Any, Any]:
    """The values of groups of experts, and what these were computed from."""
    shape = (choice.shape[0], groups, choice.shape[1] // groups)
    # the best of a group is off by no more than the worst of its choices
    worst = np.broadcast_to(np.max(np.reshape(choice.e, shape), axis=-1, keepdims=True, initial=0.0), shape)
    values = group_values(choice.like(choice.v, np.reshape(worst, choice.shape)), groups, rule)
    order = np.argsort(-np.reshape(choice.v, shape), axis=-1, kind="stable")[..., : 2 if rule == "top2" else 1]
    return values, np.take_along_axis(np.reshape(keys, shape), order, axis=-1)


def _inside(chosen: Any, x: Any) -> Any:
    """Indices that can be read; those that cannot are not admissible anyway."""
    return np.clip(chosen, 0, max(x.shape[-1] - 1, 0)).astype(np.int64)


def _sample(call: Call, made: tuple[Any, ...], rules: Rules) -> Choice:
    logits, uniform, temperature, top_k, top_p, min_p = call.operands(rules)
    ok = admits_sample(logits, uniform.v, made[0], top_p.v, temperature=temperature.v, top_k=top_k, min_p=min_p.v)
    return Choice(ok, made)


def _rejection(call: Call, made: tuple[Any, ...], rules: Rules) -> Choice:
    return Choice(admits_rejection(*call.operands(rules), *made), made)


def _compared(call: Call, made: tuple[Any, ...], rules: Rules) -> Choice | None:
    """What is said of two numbers must be so for some that they may be."""
    operands = call.operands(rules)
    if not any(map(_uncertain, operands)):
        return None
    (a, top_a), (b, top_b) = (_ends(x) for x in operands)
    may, may_not = {
        "eq": ((a <= top_b) & (b <= top_a), (a != top_b) | (b != top_a)),
        "lt": (a < top_b, top_a >= b),
        "le": (a <= top_b, top_a > b),
    }[call.op]
    return Choice(np.where(made[0], may, may_not | np.isnan(a) | np.isnan(b)), made)


def _truth(call: Call, made: tuple[Any, ...], rules: Rules) -> Choice | None:
    """What is said to be zero must be so for some number that it may be."""
    (x,) = call.operands(rules)
    if not _uncertain(x) or (call.op == "cast" and call.attributes["dtype"] is not bool_):
        return None
    low, high = _ends(x)
    said = made[0]
    if call.op == "nonzero":
        said = np.zeros(x.shape, bool)
        said[tuple(_inside(index, np.empty(size)) for index, size in zip(made[0], x.shape, strict=True))] = True
    return Choice(np.where(said, (low != 0) | (high != 0), (low <= 0) & (high >= 0)), made)


def _ends(x: Any) -> tuple[Any, Any]:
    return (x.v - x.e, x.v + x.e) if isinstance(x, Bounded) else (x, x)


CHOICES: dict[str, Judge] = {
    **dict.fromkeys(("eq", "lt", "le"), _compared),
    **dict.fromkeys(("nonzero", "cast"), _truth),
    "argmax": _argmax,
    "topk": _topk,
    "moe_gating_topk": _gating,
    "top_k_top_p_sample": _sample,
    "rejection_sample": _rejection,
}
"""The ops that choose."""
