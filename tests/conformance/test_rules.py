"""Declared arithmetic: the length of chains, the square-root law, and impossible declarations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.bounds import Bounded, Rules
from xinheng.core.errors import SettingsError
from xinheng.core.hal import ANY_ORDER, TF32, Arithmetic
from xinheng.core.ir.dtype import bfloat16, float16, float32, float64, int8

CANCELS, ONE_SIGN = (np.array([0.0]), np.array([1.0])), (np.array([1.0]), np.array([1.0]))


def gamma(rules: Rules, terms: int, data: tuple[Any, Any] = ONE_SIGN) -> float:
    return float(np.broadcast_to(rules.gamma(terms, *data), (1,))[0] / rules.unit)


def test_gamma_is_the_chain_of_additions() -> None:
    assert gamma(Rules(), 1) == 0
    assert gamma(Rules(), 4097) == pytest.approx(4096, rel=1e-3)
    assert gamma(Rules(depth=64), 4097) == pytest.approx(128, rel=1e-3)
    assert gamma(Rules(depth=64), 9) == pytest.approx(8, rel=1e-3)
    assert gamma(Rules(depth=lambda n: math.ceil(math.log2(n + 1))), 4096) == pytest.approx(12, rel=1e-3)
    assert np.isinf(gamma(Rules(), 2**25))


def test_the_square_root_law_holds_where_terms_cancel() -> None:
    assert gamma(Rules(), 4097, CANCELS) == pytest.approx(4 * 64, rel=1e-3)
    assert gamma(Rules(lam=2), 4097, CANCELS) == pytest.approx(2 * 64, rel=1e-3)
    assert gamma(Rules(structured=True), 4097, CANCELS) == pytest.approx(4096, rel=1e-3)
    assert gamma(Rules(depth=64), 4097, CANCELS) == pytest.approx(128, rel=1e-3)
    assert gamma(Rules(), 5, CANCELS) == pytest.approx(4, rel=1e-3)
    half = np.array([0.5, 0.51])
    assert np.diff(Rules().gamma(4097, half, np.ones(2)))[0] > 1000 * float32.unit_roundoff


def test_narrow_partial_sums_add_their_own_chain() -> None:
    g = Rules(partial=bfloat16, chunk=64).gamma(256, *ONE_SIGN)
    assert g == pytest.approx(4 * 2.0**-8 / (1 - 4 * 2.0**-8), rel=1e-3)
    tiny: Any = np.sum(Bounded(np.full(128, 1e-9), 0.0, Rules(partial=float16, chunk=64)))
    assert tiny.e >= 2 * float16.eta


def test_float64_arithmetic_counts_the_reference_too() -> None:
    assert Rules(compute=float64).unit == 2 * float64.unit_roundoff
    assert Rules().unit == pytest.approx(float32.unit_roundoff)


def test_inputs_cut_by_a_matrix_unit() -> None:
    a, b = np.array([[1 + 2.0**-20, 1.0]]), np.array([[1.0], [1.0]])
    plain, cut = (Bounded(a, 0.0, rules) @ Bounded(b, 0.0, rules) for rules in (Rules(), Rules(inputs=TF32)))
    assert cut.e - plain.e == pytest.approx(2 * TF32.unit_roundoff, rel=1e-2)


@pytest.mark.parametrize(
    "wrong", [{"chunk": 0}, {"lam": 0.0}, {"ulps": -1.0}, {"depth": 0}, {"compute": int8}, {"partial": int8}], ids=str
)
def test_impossible_declarations(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Rules(**wrong)


def test_what_a_device_declares_becomes_rules() -> None:
    wide = Arithmetic(64, accumulate=float64, flush=True, saturate=True, inputs=TF32, ulps=2.0)
    rules = Rules.of(wide, float32, structured=True)
    assert (rules.compute, rules.depth, rules.inputs, rules.ulps) == (float64, 64, TF32, 2.0)
    assert rules.flush
    assert rules.saturate
    assert rules.structured
    assert Rules.of(wide, float16).inputs is None
    assert Rules.of(wide, float64, stepwise=True).compute is float64
    assert Rules.of(Arithmetic(ANY_ORDER)) == Rules.of(None) == Rules()


def test_steps_of_a_decomposition_are_kept_in_float32() -> None:
    """However well a device computes within each of them."""
    assert Rules.of(Arithmetic(64, accumulate=float64), bfloat16, stepwise=True).compute is float32
    assert Rules.of(Arithmetic(64, accumulate=float16), bfloat16, stepwise=True).compute is float16
