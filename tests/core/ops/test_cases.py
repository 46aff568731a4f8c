"""Every op has cases, and what it says about itself agrees with its reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.conformance.bounds import Bounded
from xinheng.core.ir import DTYPES, StateType, TensorType, WeightType, evaluate, parse_graph, verify
from xinheng.core.ir.dtype import float32, round_to
from xinheng.core.ir.types import Type
from xinheng.core.ops import FAMILIES, OPSET, KVPages

from ...op_cases import CASES, Call, Case

FLOATS = ("float64", "float32", "float16", "bfloat16")


ALL = [pytest.param(case, id=case.id) for case in CASES]
COMPOSITE = [pytest.param(case, id=case.id) for case in CASES if OPSET[case.op].composite]


def calls(case: Case, *kinds: str) -> list[Call]:
    """A case in some dtypes; one without floats once."""
    return [case.in_dtype(DTYPES[kind]) for kind in (kinds if case.floats else kinds[:1])]


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


@pytest.mark.parametrize("case", ALL)
def test_infer_agrees_with_the_reference(case: Case) -> None:
    for call in calls(case, *FLOATS):
        graph = verify(call.graph())
        declared = [r.type for node in graph.nodes for r in node.results]
        for result, promised in zip(call.reference(), declared, strict=True):
            assert_typed(result, promised)


def assert_typed(result: Any, promised: Type) -> None:
    """A result of a reference has the promised shape and class of numbers; floats are float64."""
    if isinstance(promised, StateType):
        assert isinstance(result, KVPages)
        return
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


@pytest.mark.parametrize("case", ALL)
def test_references_run_on_bounded_operands(case: Case) -> None:
    for call in calls(case, "float64", "float16"):
        for bounded, plain in zip(call.bounded(), call.reference(), strict=True):
            for b, p in zip(arrays(bounded), arrays(plain), strict=True):
                value = b.v if isinstance(b, Bounded) else np.asarray(b)
                np.testing.assert_allclose(value, np.asarray(p, value.dtype), rtol=1e-12, atol=0)
                assert not isinstance(b, Bounded) or not np.isnan(b.e).any()


@pytest.mark.parametrize("case", COMPOSITE)
def test_decompositions_equal_their_reference(case: Case) -> None:
    for call in calls(case, "float64", "float32"):
        for got, want in zip(expanded(call), call.reference(), strict=True):
            if case.op == "top_k_top_p_sample":
                np.testing.assert_array_equal(got, want)
            else:
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-15 if case.special else 0)


@pytest.mark.parametrize("case", COMPOSITE)
def test_decompositions_round_narrow_types_once(case: Case) -> None:
    for call in calls(case, "float16", "bfloat16") if case.floats else ():
        for got, want in zip(expanded(call), call.reference(), strict=True):
            np.testing.assert_array_equal(round_to(got, call.kind), round_to(want, call.kind))


def expanded(call: Call) -> tuple[Any, ...]:
    """The results of the decomposition, evaluated in float64."""
    graph = verify(call.graph(expanded=True))
    return tuple(evaluate(graph, call.feeds(TensorType), call.feeds(WeightType))[0].values())


@pytest.mark.parametrize("case", ALL)
def test_graphs_of_cases_survive_their_text_form(case: Case) -> None:
    graph = case.in_dtype(float32).graph()
    again = parse_graph(str(graph), OPSET)
    assert str(verify(again)) == str(graph)
