"""Simulated kernels are float32, add up in the order they claim, and round once; correct ones are never rejected."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.bounds import Rules, check, operand
from xinheng.conformance.case import SAMPLES, Sample
from xinheng.conformance.layout import Layout
from xinheng.conformance.selftests import alarms
from xinheng.conformance.selftests.simulated import (
    BLOCKED,
    FUSED,
    ORDERS,
    PAIRWISE,
    REORDERED,
    SEQUENTIAL,
    Kernel,
    Order,
    correct,
    held,
    kernel,
    narrow,
    rebuilt,
    simulate,
    stored,
)
from xinheng.conformance.selftests.standard import Standard, standards
from xinheng.conformance.selftests.variants import VARIANTS
from xinheng.core.errors import GraphError
from xinheng.core.hal import TF32
from xinheng.core.ir import DType, TensorType
from xinheng.core.ir.dtype import bfloat16, float16, float32, round_to
from xinheng.core.ir.op import Tolerance
from xinheng.core.ops import OPSET

from ..samples import EVERY

RNG = np.random.default_rng(3)
TINY = 2.0**-24


def array(x: Any, order: Order = SEQUENTIAL) -> Any:
    return held(np.asarray(x, np.float64), kernel(order))


# ------------------------------------------------------------------------------------------------------------- orders
@pytest.mark.parametrize(
    ("order", "total"),
    [
        (SEQUENTIAL, 1.0),  # each tiny term is lost on its own
        (BLOCKED, 1.0 + 3 * 64 * TINY),  # those of the blocks behind the first add up
        (PAIRWISE, 1.0 + 254 * TINY),  # all but the one beside the first
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_tiny_terms_tell_the_order(order: Order, total: float) -> None:
    terms = np.full(256, TINY)
    terms[0] = 1.0
    assert float(np.sum(array(terms, order), axis=0)) == np.float32(total)
    assert float(np.matmul(array(terms[None], order), array(np.ones((256, 1)), order))[0, 0]) == np.float32(total)
    assert float(np.mean(array(terms, order), axis=-1)) == np.float32(total) / 256


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_running_sums_are_sums(order: Order) -> None:
    whole = RNG.integers(-1000, 1000, (3, 300))
    made = np.cumsum(array(whole, order), axis=1)
    assert isinstance(made, Kernel)
    assert np.array_equal(np.asarray(made), np.cumsum(whole, axis=1))
    assert np.cumsum(array(np.zeros((2, 0)), order), axis=1).shape == (2, 0)
    assert float(np.sum(array(np.zeros(0), order), axis=0)) == 0


def test_orders_differ_where_rounding_does() -> None:
    terms = array(RNG.standard_normal((50, 1000)))
    totals = {order.name: np.sum(terms.view(kernel(order)), axis=1).tobytes() for order in ORDERS if order is not FUSED}
    assert len(set(totals.values())) == len(totals)
    again = np.sum(terms.view(kernel(REORDERED)), axis=1)
    assert again.tobytes() == totals["reordered"]


def test_a_fused_product_is_not_rounded_before_it_is_added() -> None:
    a = np.float32(1 + 2.0**-12)
    x, y = np.array([[-1.0, a]]), np.array([[float(np.float32(a * a))], [float(a)]])
    assert np.matmul(array(x), array(y))[0, 0] == 0
    assert np.matmul(array(x, FUSED), array(y, FUSED))[0, 0] == 2.0**-24


def test_narrow_partial_sums() -> None:
    terms = np.full(128, 1.0 + 2.0**-6)
    assert float(np.sum(array(terms, narrow(bfloat16)), axis=0)) == round_to(2 * round_to(65.0, bfloat16), bfloat16)
    assert float(np.sum(array(np.full(300, 1.0), narrow(bfloat16, 1)), axis=0)) == 256


# ---------------------------------------------------------------------------------------------------------- references
def floats(x: Any) -> list[Any]:
    pages = x if isinstance(x, tuple) else (x,)
    return [page for page in pages if np.asarray(page).dtype.kind == "f"]


@pytest.mark.parametrize("op", sorted(name for name, op in OPSET.items() if op.tolerance is not Tolerance.EXACT))
def test_references_stay_in_float32(op: str) -> None:
    for sample in [s for s in SAMPLES[op] if s.layout is Layout.WHOLE and not s.special and not s.tier][:4]:
        call = sample.case(float32).call
        for made in simulate(call, PAIRWISE):
            for x in floats(made):
                assert np.array_equal(x, np.asarray(x, np.float32), equal_nan=True), sample.id


def test_integers_that_meet_floats_are_float32() -> None:
    assert (np.array([2**24 + 1]) * array([1.0])).tolist() == [2.0**24]
    assert (np.array([3], np.int8) + np.array([4], np.int8)).dtype == np.int8
    assert isinstance(array([1.0]) * 0.1, Kernel)
    assert (array([1.0]) * 0.1).dtype == np.float32
    assert not isinstance(array([1.0]) > 0, Kernel)


@pytest.mark.parametrize("sample", EVERY[::9], ids=lambda s: s.id)
def test_results_are_rounded_once(sample: Sample) -> None:
    call = sample.in_dtype(bfloat16)
    made, raw = correct(call), simulate(call)
    for x, y, kind in zip(made, raw, call.result_types, strict=True):
        if isinstance(kind, TensorType):
            assert x.dtype == kind.dtype.numpy
            if kind.dtype.is_float:
                wanted = round_to(np.asarray(y, np.float64), kind.dtype)
                assert np.array_equal(x.astype(np.float64), wanted, equal_nan=True)


def test_a_rounding_point_is_rounded_in_sixteen_bits_only() -> None:
    case = next(s for s in SAMPLES["rms_norm"] if s.data[0] == "normal").case(bfloat16)
    plain, rounded = (simulate(case.call, points=frozenset(points))[0] for points in ((), ("normed",)))
    assert not np.array_equal(plain, rounded)
    in_float32 = replace(case.call, kind=float32)
    assert np.array_equal(simulate(in_float32)[0], simulate(in_float32, points=frozenset({"normed"}))[0])


def test_a_reference_without_the_part_cannot_be_rebuilt() -> None:
    with pytest.raises(GraphError, match="no attention to replace"):
        rebuilt(OPSET["rms_norm"].reference, attention=None)


# -------------------------------------------------------------------------------------------------------------- alarms
@pytest.mark.parametrize("op", sorted({**VARIANTS, "matmul": {}, "sum": {}, "moe_gating_topk": {}, "quantize": {}}))
def test_correct_kernels_pass(op: str) -> None:
    for standard in standards(op)[::12]:
        heard = alarms.heard(standard)
        assert heard.runs
        assert not heard.rejected


@pytest.mark.parametrize(("op_class", "dtype"), alarms.families(tuple(OPSET)))
def test_correct_kernels_of_drawn_operands_pass(op_class: str, dtype: str) -> None:
    heard = alarms.of_seeds(tuple(OPSET), op_class, dtype, range(5))
    assert heard.seeds
    assert not heard.rejected


def test_seeds_draw_new_operands() -> None:
    first, second = (next(iter(alarms.drawn(("softmax",), "reduction", "float32", range(i, i + 1)))) for i in (0, 700))
    assert first.id != second.id
    uniforms = [s.call.values[1] for s in alarms.drawn(("top_k_top_p_sample",), "stochastic", "float32", range(3))]
    assert len({u.tobytes() for u in uniforms}) == 3


# ------------------------------------------------------------------------------------------------------ declared modes
def admitted(expected: Any, out: Any, dtype: DType) -> bool:
    return check(expected, round_to(np.asarray(out, np.float64), dtype), dtype).ok


def product(a: Any, b: Any, dtype: DType, rules: Rules) -> Any:
    return operand(a, dtype, rules) @ operand(b, dtype, rules)


MODES: dict[str, tuple[dict[str, Any], Order, DType]] = {
    "partial": ({"partial": bfloat16, "chunk": 64}, narrow(bfloat16), bfloat16),
    "depth": ({"depth": 64}, BLOCKED, bfloat16),
    "flush": ({"flush": True}, SEQUENTIAL, bfloat16),
    "inputs": ({"inputs": TF32}, SEQUENTIAL, float32),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_a_declared_mode_admits_its_kernels(mode: str, scale: float) -> None:
    declared, order, dtype = MODES[mode]
    for seed in range(20):
        rng = np.random.default_rng(seed)
        a, b = (round_to(scale * rng.standard_normal(shape), dtype) for shape in ((3, 150), (150, 5)))
        expected = product(a, b, dtype, Rules(**declared))
        cut = (lambda x: round_to(x, TF32)) if mode == "inputs" else (lambda x: x)
        out = np.matmul(array(cut(a), order), array(cut(b), order))
        assert admitted(expected, round_to(out, dtype, flush=mode == "flush"), dtype)


def test_a_declared_mode_hides_nothing_else() -> None:
    a, b = (round_to(RNG.standard_normal(shape), bfloat16) for shape in ((3, 64), (64, 32)))
    expected, order = product(a, b, bfloat16, Rules(partial=bfloat16, chunk=64)), narrow(bfloat16)
    assert admitted(expected, np.matmul(array(a, order), array(b, order)), bfloat16)
    assert not admitted(expected, np.matmul(array(a[:, :-1], order), array(b[:-1], order)), bfloat16)
    plain = product(a, b, bfloat16, Rules())
    assert not admitted(plain, np.matmul(array(a, narrow(bfloat16, 8)), array(b, narrow(bfloat16, 8))), bfloat16)


def test_declared_depth_sees_what_an_undeclared_sum_hides() -> None:
    """The mean square over K - 1 instead of K terms, at K = 4096."""
    terms, w = 4096, np.ones(4096)
    x = round_to(RNG.standard_normal((4, terms)), float32)

    def norm(x: Any, over: int) -> Any:
        return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) / over + 1e-6) * 1.0

    wrong = norm(array(x, BLOCKED), terms - 1)
    loose, tight = (
        OPSET["rms_norm"].reference(operand(x, float32, r), operand(w, float32, r), eps=1e-6)
        for r in (Rules(), Rules(depth=64))
    )
    assert admitted(loose, wrong, float32)
    assert not admitted(tight, wrong, float32)
    assert admitted(tight, norm(array(x, BLOCKED), terms), float32)


def test_the_square_root_law_needs_cancellation() -> None:
    """Squares below half an ulp of the running sum vanish: the error then grows with the length of the chain."""
    x = np.full((1, 16384), round_to(0.1, float32))
    expected = np.sum(operand(x, float32, Rules()), axis=-1)
    out = np.sum(array(x), axis=-1)
    assert admitted(expected, out, float32)
    error = np.abs(np.asarray(out, np.float64) - expected.v) / np.abs(x).sum(-1)
    assert (error > 4 * math.sqrt(x.shape[-1]) * float32.unit_roundoff).all(), "data too tame to tell"


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_products_that_underflow_pass(order: Order) -> None:
    a, b = (round_to(RNG.standard_normal(shape) * 2.0**-73, float32) for shape in ((8, 5), (5, 8)))
    out = np.matmul(array(a, order), array(b, order))
    assert admitted(product(a, b, float32, Rules()), out, float32)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_stored_exponentials_are_no_plain_program(dtype: DType) -> None:
    """Probabilities kept in bfloat16 pass a bfloat16 kernel, which may store them, and fail a float16 one."""
    sample = next(s for s in SAMPLES["sdpa_varlen"] if s.data[0] == "normal" and "prefill" in s.label)
    standard = Standard.of(sample.case(dtype))
    low = simulate(replace(standard.call, kind=bfloat16), points=frozenset({"probs"}))
    assert standard.judge(stored(standard.call, low)).ok is (dtype is bfloat16)
