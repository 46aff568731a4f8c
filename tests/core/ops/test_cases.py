"""Every op has cases, and what it says about itself agrees with its reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.conformance.bounds import Bounded
from xinheng.core.ir import DTYPES, StateType, TensorType, WeightType, evaluate, parse_graph, verify
from xinheng.core.ir.dtype import round_to
from xinheng.core.ops import FAMILIES, OPSET, KVPages

from ...op_cases import CASES, Call, Case

FLOATS = ("float64", "float32", "float16", "bfloat16")


def calls(*kinds: str, composite: bool = False) -> list[Any]:
    """The cases in some dtypes; those without floats once."""
    chosen = [c for c in CASES if OPSET[c.op].composite or not composite]
    pairs = [(c, kind) for c in chosen for kind in (kinds if c.floats else kinds[:1])]
    return [pytest.param(c, DTYPES[kind], id=f"{c.id}-{kind}" if c.floats else c.id) for c, kind in pairs]


def arrays(value: Any) -> list[Any]:
    """The arrays in a result."""
    return list(value) if isinstance(value, KVPages) else [value]


def test_every_op_has_cases() -> None:
    assert set(OPSET) == {c.op for c in CASES}


@pytest.mark.parametrize("op", OPSET.values(), ids=list(OPSET))
def test_every_op_is_documented_and_typed(op: Any) -> None:
    assert op.doc
    assert op.doc.split("\n")[0].rstrip()[-1] in ".:;", op.doc
    assert op._infer is not None


def test_families_list_every_op_once() -> None:
    listed = [op.name for family in FAMILIES.values() for op in family]
    assert sorted(listed) == list(OPSET)


@pytest.mark.parametrize(("case", "kind"), calls(*FLOATS))
def test_infer_agrees_with_the_reference(case: Case, kind: Any) -> None:
    call = case.in_dtype(kind)
    graph = verify(call.graph())
    declared = [r.type for node in graph.nodes for r in node.results]
    made = call.reference()
    assert len(made) == len(declared)
    for result, promised in zip(made, declared, strict=True):
        if isinstance(promised, StateType):
            assert isinstance(result, KVPages)
            continue
        assert isinstance(promised, TensorType)
        assert np.shape(result) == promised.shape
        actual = np.asarray(result).dtype
        if promised.dtype.is_float:
            assert actual == np.float64
        elif promised.dtype.kind == "bool":
            assert actual.kind == "b"
        else:
            assert actual.kind in "iu"
            np.testing.assert_array_equal(np.asarray(result).astype(promised.dtype.numpy), result)


@pytest.mark.parametrize(("case", "kind"), calls("float64", "float16"))
def test_references_run_on_bounded_operands(case: Case, kind: Any) -> None:
    call = case.in_dtype(kind)
    for bounded, plain in zip(call.bounded(), call.reference(), strict=True):
        for b, p in zip(arrays(bounded), arrays(plain), strict=True):
            value = b.v if isinstance(b, Bounded) else np.asarray(b)
            np.testing.assert_allclose(value, np.asarray(p, value.dtype), rtol=1e-12, atol=0)
            assert not isinstance(b, Bounded) or not np.isnan(b.e).any()


@pytest.mark.parametrize(("case", "kind"), calls("float64", "float32", composite=True))
def test_decompositions_equal_their_reference(case: Case, kind: Any) -> None:
    for got, want in zip(expanded(case.in_dtype(kind)), case.in_dtype(kind).reference(), strict=True):
        if case.op == "top_k_top_p_sample":
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-15 if case.special else 0)


@pytest.mark.parametrize(("case", "kind"), calls("float16", "bfloat16", composite=True))
def test_decompositions_round_narrow_types_once(case: Case, kind: Any) -> None:
    if not case.floats:
        pytest.skip("has no float operands")
    call = case.in_dtype(kind)
    exact = [round_to(want, kind) for want in call.reference()]
    for got, want in zip(expanded(call), exact, strict=True):
        np.testing.assert_array_equal(round_to(got, kind), want)


def expanded(call: Call) -> tuple[Any, ...]:
    """The results of the decomposition, evaluated in float64."""
    graph = verify(call.graph(expanded=True))
    return tuple(evaluate(graph, call.feeds(TensorType), call.feeds(WeightType))[0].values())


@pytest.mark.parametrize(("case", "kind"), calls("float32"))
def test_graphs_of_cases_survive_their_text_form(case: Case, kind: Any) -> None:
    graph = case.in_dtype(kind).graph()
    again = parse_graph(str(graph), OPSET)
    assert str(verify(again)) == str(graph)
