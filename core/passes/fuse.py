"""Fusing toward what a device has: programs of simpler ops become the composite that means the same."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from .. import ops
from ..ir.graph import Builder, Graph, Node
from ..ir.op import Op
from .pattern import Match, Pattern, Rule, Var, pattern, rewrite


def _folds_last(name: str) -> Callable[[Match], bool]:
    """Whether a reduction of a match runs over the last axis and keeps it."""

    def holds(match: Match) -> bool:
        node = match.nodes[name]
        source = node.operands[0]
        assert source is not None
        last = node.attributes["axis"] % source.tensor.rank == source.tensor.rank - 1
        return last and bool(node.attributes["keepdims"])

    return holds


def _number(match: Match, name: str) -> float:
    data = match.values[name].data
    assert isinstance(data, int | float)
    return float(data)


def _rms_norm() -> Rule:
    x, weight = Var("x"), Var("weight")
    mean = pattern(ops.mean, pattern(ops.square, x), name="mean")
    normed = pattern(ops.mul, x, pattern(ops.rsqrt, pattern(ops.add, mean, Var("eps"))))

    def replace(match: Match, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"root": ops.rms_norm(values["x"], values["weight"], eps=_number(match, "eps"))}

    def when(match: Match) -> bool:
        scale, source = match.values["weight"].tensor, match.values["x"].tensor
        known = isinstance(match.values["eps"].data, int | float)
        return known and _folds_last("mean")(match) and scale.shape == source.shape[-1:] and scale.dtype == source.dtype

    return Rule("rms_norm", pattern(ops.mul, normed, weight), replace, when)


def _add_rms_norm() -> Rule:
    total = pattern(ops.add, Var("x"), Var("residual"), name="sum")

    def replace(match: Match, values: Mapping[str, Any]) -> Mapping[str, Any]:
        eps = match.root.attributes["eps"]
        normed, summed = ops.add_rms_norm(values["x"], values["residual"], values["weight"], eps=eps)
        return {"root": normed, "sum": summed}

    def when(match: Match) -> bool:
        return match.values["x"].type == match.values["residual"].type

    return Rule("add_rms_norm", pattern(ops.rms_norm, total, Var("weight")), replace, when, kept=("sum",))


def _silu() -> Rule:
    x = Var("x")
    return Rule(
        "silu", pattern(ops.mul, x, pattern(ops.sigmoid, x)), lambda match, values: {"root": ops.silu(values["x"])}
    )


def _gated(act: Op[..., Any], fused: Op[..., Any]) -> Rule:
    def replace(match: Match, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"root": fused(values["gate"], values["up"], **match.nodes["act"].attributes)}

    def when(match: Match) -> bool:
        return match.values["gate"].type == match.values["up"].type

    wanted: Pattern = pattern(ops.mul, pattern(act, Var("gate"), name="act"), Var("up"))
    return Rule(fused.name, wanted, replace, when)


RULES = (
    _rms_norm(),
    _silu(),
    _gated(ops.silu, ops.silu_and_mul),
    _gated(ops.gelu, ops.gelu_and_mul),
    _add_rms_norm(),
)
"""All rules; each is named after the op it makes."""


def fuse(graph: Graph, supports: Callable[[Node], bool], keep: Container[str] = ()) -> Graph:
    """Apply every rule whose result `supports` accepts for the very operands it would have; ops in `keep` stay."""
    return rewrite(graph, [_guarded(rule, supports, keep) for rule in RULES])


def _guarded(rule: Rule, supports: Callable[[Node], bool], keep: Container[str]) -> Rule:
    """The rule, refusing matches whose replacement has a node that is not supported, or that cover an op to keep."""

    def when(match: Match) -> bool:
        if not rule.when(match) or any(node.op.name in keep for node in match.covered):
            return False
        trial = Builder("trial")
        image = {
            id(v): trial.parameter(v.name, v.tensor) if v.data is None else trial.constant(v.data, v.dtype, v.name)
            for v in {id(v): v for v in match.values.values()}.values()
        }
        made = rule.replace(match, {name: image[id(value)] for name, value in match.values.items()})
        return all(supports(node) for node in trial.build(**made).nodes)

    return Rule(rule.name, rule.pattern, rule.replace, when, rule.kept)
