"""Whether a device computes a case within the computed error bound of its reference."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from xinheng.conformance.bounds import Rules, check
from xinheng.core.hal import Device, Numerics
from xinheng.core.ir import DType, StateType, TensorType
from xinheng.core.ops import OPSET

from .case import STATES, STEPWISE, Call, Case, held_in, results

USELESS = 0.2
"""Largest share of elements whose bound says nothing, for cases with ordinary values."""


def judge(case: Case, kind: DType, device: Device, kernel: str, rules: Rules | None = None) -> None:
    """Run a case by one kernel of a device, or by "decompose", and demand that each element lies within its bound."""
    call = case.in_dtype(kind)
    made = call.run(device, Numerics(overrides={case.op: kernel if kernel == "decompose" else f"@{kernel}"}))
    declared = [r.type for r in call.graph().nodes[0].results]
    if case.op in ("top_k_top_p_sample", "rejection_sample"):
        assert np.all(admissible(call, made)), f"{made} is not {call.reference()}"
        return
    expectations = call.stepwise() if case.op in STEPWISE else call.bounded(rules)
    for expected, got, promised in zip(expectations, made, declared, strict=True):
        if isinstance(promised, StateType):
            assert isinstance(expected, STATES)
            for name, e, g in zip(expected._fields, expected, got, strict=True):
                _demand(case, f"state {name}", e, g, held_in(promised))
        else:
            assert isinstance(promised, TensorType)
            assert got.dtype == promised.dtype.numpy, f"{got.dtype} is not {promised}"
            _demand(case, str(promised), expected, got, promised.dtype)


def _demand(case: Case, what: str, expected: Any, got: Any, kind: DType) -> None:
    verdict = check(expected, np.asarray(got).astype(np.float64) if kind.is_float else got, kind)
    assert verdict.ok, f"{case.id}: {what} fails: {verdict}; got {np.asarray(got)[verdict.worst_index or ...]}"
    useful = case.special or case.op in STEPWISE or verdict.useless_share <= USELESS
    assert useful, f"{case.id}: bound of {what} is useless: {verdict}"


def admissible(call: Call, made: tuple[Any, ...]) -> Any:
    """Whether each row is what the reference chooses for some numbers within float32 error of those given."""
    ok = np.zeros(made[0].shape[:1], bool)
    for given in _nearby(call):
        same = np.ones(ok.shape, bool)
        for expected, got in zip(results(OPSET[call.op].reference(*given)), made, strict=True):
            same &= np.all(expected == got, axis=tuple(range(1, got.ndim)))
        ok |= same
    return ok


def _nearby(call: Call) -> Iterator[tuple[Any, ...]]:
    slack = (-1e-5, 0.0, 1e-5)
    if call.op == "rejection_sample":
        *rest, uniform = call.values
        yield from ((*rest, uniform + du) for du in slack)
        return
    logits, uniform, temperature, top_k, top_p, min_p = call.values
    for du, dp, dm in product(slack, slack, slack):
        yield logits, uniform + du, temperature, top_k, top_p + dp, min_p * (1 + dm)
