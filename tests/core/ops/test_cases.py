"""Every op has cases, and what it says about itself agrees with its reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.conformance.bounds import Bounded
from xinheng.conformance.call import Call
from xinheng.conformance.case import Sample
from xinheng.conformance.mirror import mirrored
from xinheng.core.ir import DTYPES, StateType, TensorType, WeightType, evaluate, parse_graph, verify
from xinheng.core.ir.dtype import float32, round_to
from xinheng.core.ir.evaluate import bind_unbacked, resolve
from xinheng.core.ir.types import Type
from xinheng.core.ops import FAMILIES, OPSET, STATES

from ...samples import EVERY

FLOATS = ("float64", "float32", "float16", "bfloat16")
STEPWISE = {"add_rms_norm", "fused_moe"}
"""Composites whose decompositions keep what they have between their parts in the dtype of the operands."""


ALL = [pytest.param(case, id=case.id) for case in EVERY]
COMPOSITE = [pytest.param(case, id=case.id) for case in EVERY if OPSET[case.op].composite]


def calls(case: Sample, *kinds: str) -> list[Call]:
    """A case in some dtypes; one without floats once."""
    return [case.in_dtype(DTYPES[kind]) for kind in (kinds if case.floats else kinds[:1])]


def arrays(value: Any) -> list[Any]:
    """The arrays in a result."""
    return list(value) if isinstance(value, STATES) else [value]


def test_every_op_has_cases() -> None:
    assert set(OPSET) == {c.op for c in EVERY}


@pytest.mark.parametrize("op", OPSET.values(), ids=list(OPSET))
def test_every_op_is_documented_and_typed(op: Any) -> None:
    assert op.doc
    assert op.doc.split("\n")[0].rstrip()[-1] in ".:;", op.doc
    assert op._infer is not None


def test_families_list_every_op_once() -> None:
    listed = [op.name for family in FAMILIES.values() for op in family]
    assert sorted(listed) == list(OPSET)


@pytest.mark.parametrize("case", ALL)
def test_infer_agrees_with_the_reference(case: Sample) -> None:
    for call in calls(case, *FLOATS):
        graph = verify(call.graph())
        for result, promised in zip(call.reference(), graph.nodes[-1].results, strict=True):
            sizes: dict[str, int] = {}
            if isinstance(promised.type, TensorType):
                bind_unbacked(promised, np.shape(result), sizes)
            assert_typed(result, promised.type, sizes)


def assert_typed(result: Any, promised: Type, sizes: dict[str, int]) -> None:
    """A result of a reference has the promised shape and class of numbers; floats are float64."""
    if isinstance(promised, StateType):
        assert hasattr(result, "_fields")
        return
    assert isinstance(promised, TensorType)
    assert np.shape(result) == resolve(promised.shape, sizes)
    actual = np.asarray(result).dtype
    if promised.dtype.is_float:
        assert actual == np.float64
    elif promised.dtype.kind == "bool":
        assert actual.kind == "b"
    else:
        assert actual.kind in "iu"
        np.testing.assert_array_equal(np.asarray(result).astype(promised.dtype.numpy), result)


@pytest.mark.parametrize("case", ALL)
def test_references_run_on_bounded_operands(case: Sample) -> None:
    for call in calls(case, "float64", "float16"):
        for bounded, plain in zip(call.bounded(), call.reference(), strict=True):
            for b, p in zip(arrays(bounded), arrays(plain), strict=True):
                value = b.v if isinstance(b, Bounded) else np.asarray(b)
                np.testing.assert_allclose(value, np.asarray(p, value.dtype), rtol=1e-12, atol=0)
                assert not isinstance(b, Bounded) or not np.isnan(b.e).any()


@pytest.mark.parametrize("case", COMPOSITE)
def test_decompositions_equal_their_reference(case: Sample) -> None:
    for call in calls(case, "float64", "float32"):
        for got, want, promised in zip(expanded(call), call.reference(), declared(call), strict=True):
            # a result that is narrower than its operands is rounded at the end of the decomposition
            kind = promised.dtype if isinstance(promised, TensorType) else call.kind
            rtol = 2 * kind.unit_roundoff if kind.is_float and kind.bits < call.kind.bits else 1e-12
            for g, w in zip(arrays(got), arrays(want), strict=True):
                np.testing.assert_allclose(g, w, rtol=rtol, atol=1e-15)


@pytest.mark.parametrize("case", COMPOSITE)
def test_decompositions_round_narrow_types_once(case: Sample) -> None:
    for call in calls(case, "float16", "bfloat16") if case.floats and case.op not in STEPWISE else ():
        for got, want in zip(expanded(call), call.reference(), strict=True):
            for g, w in zip(arrays(got), arrays(want), strict=True):
                np.testing.assert_array_equal(round_to(g, call.kind), round_to(w, call.kind))


def expanded(call: Call) -> tuple[Any, ...]:
    """The results of the decomposition, evaluated in float64."""
    graph = verify(call.graph(expanded=True))
    with mirrored(call.attributes):
        outputs, states = evaluate(graph, call.feeds(TensorType), call.feeds(WeightType), call.feeds(StateType))
    writes = any(isinstance(kind, StateType) for kind in declared(call))
    return (*outputs.values(), *(states.values() if writes else ()))


def declared(call: Call) -> list[Any]:
    """The types of the results."""
    return [r.type for r in call.graph().nodes[-1].results]


@pytest.mark.parametrize("case", ALL)
def test_graphs_of_cases_survive_their_text_form(case: Sample) -> None:
    graph = case.in_dtype(float32).graph()
    again = parse_graph(str(graph), OPSET)
    assert str(verify(again)) == str(graph)
