"""Whether a device computes a case within the computed error bound of its reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.conformance.bounds import Rules, check
from xinheng.core.hal import Device, Numerics
from xinheng.core.ir import DType, StateType, TensorType
from xinheng.core.ops import OPSET, KVPages

from .case import Call, Case, results

USELESS = 0.2
"""Largest share of elements whose bound says nothing, for cases with ordinary values."""


def judge(case: Case, kind: DType, device: Device, kernel: str, rules: Rules | None = None) -> None:
    """Run a case by one kernel of a device and demand that each element lies within its bound."""
    call = case.in_dtype(kind)
    made = call.run(device, Numerics(overrides={case.op: f"@{kernel}"}))
    declared = [r.type for r in call.graph().nodes[0].results]
    if case.op == "top_k_top_p_sample":
        assert np.all(admissible(call, made[0])), f"{made[0]} is not {call.reference()[0]}"
        return
    for expected, got, promised in zip(call.bounded(rules), made, declared, strict=True):
        if isinstance(promised, StateType):
            assert isinstance(expected, KVPages)
            for name, e, g in zip(("k", "v"), expected, got, strict=True):
                _demand(case, f"{name} pages", e, g, kind)
        else:
            assert isinstance(promised, TensorType)
            assert got.dtype == promised.dtype.numpy, f"{got.dtype} is not {promised}"
            _demand(case, str(promised), expected, got, promised.dtype)


def _demand(case: Case, what: str, expected: Any, got: Any, kind: DType) -> None:
    verdict = check(expected, np.asarray(got).astype(np.float64) if kind.is_float else got, kind)
    assert verdict.ok, f"{case.id}: {what} fails: {verdict}; got {np.asarray(got)[verdict.worst_index or ...]}"
    assert case.special or verdict.useless_share <= USELESS, f"{case.id}: bound of {what} is useless: {verdict}"


def admissible(call: Call, tokens: Any) -> Any:
    """Whether each sampled token is what the reference chooses for some number within float32 error of those given."""
    logits, uniform, temperature, top_k, top_p, min_p = call.values
    slack = 1e-5
    ok = np.zeros(tokens.shape, bool)
    for du in (-slack, 0.0, slack):
        for dp in (-slack, 0.0, slack):
            for dm in (-slack, 0.0, slack):
                given = (logits, uniform + du, temperature, top_k, top_p + dp, min_p * (1 + dm))
                ok |= results(OPSET[call.op].reference(*given))[0] == tokens
    return ok
