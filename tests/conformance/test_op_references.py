"""Every op reference runs on bounded operands as it is, with the values of float64 and room for float32 arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.conformance.bounds import Bounded, check, operand
from xinheng.conformance.case import Sample
from xinheng.conformance.mirror import mirrored
from xinheng.core.ir import TensorType
from xinheng.core.ir.dtype import bfloat16, bool_, float16, float32, int32, round_to
from xinheng.core.ops import FAMILIES, OPSET, KVPages

from ..samples import EVERY

RNG = np.random.default_rng(11)


def floats(*shape: int) -> Any:
    return round_to(RNG.standard_normal(shape), float32)


def ints(*values: Any) -> Any:
    return np.array(values, np.int32)


X, Y, POSITIVE = floats(3, 4, 8), floats(3, 4, 8), np.abs(floats(3, 4, 8))
TRUE = RNG.random((3, 4, 8)) < 0.5
ANGLES = floats(3, 3)
CACHE = KVPages(floats(6, 4, 2, 8), floats(6, 4, 2, 5))
PAGED = (floats(5, 4, 8), CACHE, ints(0, 2, 2, 4), ints(9, 0, 3), ints([4, 1, 3], [0, 0, 0], [2, 99, 99]))
ROWS = [np.full(4, value) for value in (0.75, 0.5, 0.9375, 0.125)]
BY_NAME: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {  # operands and attributes
    "full": [((), {"shape": (2, 3), "value": 0.5, "dtype": float32})],
    "arange": [((), {"size": 5, "dtype": int32})],
    "reshape": [((X,), {"shape": (12, 8)})],
    "permute": [((X,), {"axes": (2, 0, 1)})],
    "expand": [((X[:1],), {"shape": (5, 4, 8)})],
    "concat": [((X, Y), {"axis": 1})],
    "split": [((X,), {"sizes": (3, 5), "axis": -1})],
    "slice": [((X,), {"axis": -1, "start": 1, "stop": 7, "step": 2})],
    "index_select": [((X, ints(3, 0)), {"axis": 1})],
    "gather": [((X, np.argsort(X, axis=-1)), {"axis": -1})],
    "cast": [((X,), {"dtype": kind}) for kind in (float16, bfloat16, int32, bool_)],
    "log": [((POSITIVE,), {})],
    "sqrt": [((POSITIVE,), {})],
    "rsqrt": [((POSITIVE,), {})],
    "where": [((TRUE, X, Y), {})],
    "logical_and": [((TRUE, ~TRUE), {})],
    "logical_or": [((TRUE, ~TRUE), {})],
    "logical_not": [((TRUE,), {})],
    "gelu": [((X,), {"approximate": form}) for form in ("none", "tanh")],
    "gelu_and_mul": [((X, Y), {"approximate": form}) for form in ("none", "tanh")],
    "matmul": [((X, np.swapaxes(Y, -1, -2)), {})],
    "dequantize": [((X[0],), {"dtype": float32})],
    "linear": [((X, Y[0]), {}), ((X, Y[0], X[0, :, 0]), {})],
    "embedding": [((ints([0, 3], [1, 1]), Y[0]), {"dtype": float32})],
    "sum": [((X,), {"axis": -1})],
    "mean": [((X,), {"axis": 1, "keepdims": True})],
    "amax": [((X,), {"axis": -1})],
    "cumsum": [((X,), {"axis": 1})],
    "argmax": [((X,), {"axis": -1})],
    "topk": [((X,), {"k": 3})],
    "softmax": [((X,), {"axis": -1})],
    "rms_norm": [((X, Y[0, 0]), {"eps": 1e-6})],
    "rotary_embedding": [((X, np.cos(ANGLES), np.sin(ANGLES)), {"interleaved": pairs}) for pairs in (False, True)],
    "write_cache": [((CACHE, floats(3, 2, 8), floats(3, 2, 5), ints(7, -1, 20)), {})],
    "paged_attention": [
        (PAGED, {"scale": 0.3}),
        (PAGED, {"scale": 0.3, "window": 3, "softcap": 2.0}),
        ((*PAGED, floats(4), floats(5, 4, 9)), {"scale": 0.3, "causal": False}),
    ],
    "random_uniform": [((np.array([[1, 2]], np.uint32), np.array([7], np.uint32)), {})],
    "top_k_top_p_sample": [((floats(4, 16), ROWS[0], ROWS[1], ints(0, 1, 5, 16), ROWS[2], ROWS[3]), {})],
}


UNNAMED = {op.name for op in FAMILIES["elementwise"]} - {"bitwise_and", "bitwise_shift", "pow"}
"""Elementwise ops that are not named above take as many tensors as they have operands."""


def cases() -> list[Any]:
    out = []
    for name in [name for name in OPSET if name in BY_NAME or name in UNNAMED]:
        samples = BY_NAME.get(name, [((X, Y)[: len(OPSET[name].operands)], {})])
        out += [pytest.param(name, *sample, id=f"{name} {i}") for i, sample in enumerate(samples)]
    return out


def as_operand(x: Any, rounded: Any) -> Any:
    if isinstance(x, KVPages):
        return KVPages(*(as_operand(pages, rounded) for pages in x))
    return rounded(x) if x is not None and x.dtype.kind == "f" else x


@pytest.mark.parametrize(("name", "operands", "attributes"), cases())
def test_a_reference_runs_on_bounded_operands(name: str, operands: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    reference = OPSET[name].reference
    single = [as_operand(x, lambda part: part.astype(np.float32)) for x in operands]
    double = [as_operand(x, lambda part: part.astype(np.float64)) for x in single]
    bounded = [as_operand(x, lambda part: operand(part, float32)) for x in single]
    results = [reference(*given, **attributes) for given in (bounded, double, single)]
    parts = [result if isinstance(result, tuple) else (result,) for result in results]
    for expected, exact, out in zip(*parts, strict=True):
        values = expected.v if isinstance(expected, Bounded) else expected
        np.testing.assert_allclose(values, exact, rtol=1e-13, atol=1e-300)
        dtype = attributes.get("dtype", float32) if isinstance(expected, Bounded) or values.dtype.kind == "f" else int32
        verdict = check(expected, out, dtype)
        assert verdict.ok, verdict
        assert verdict.useless_share == 0, verdict


REST = [case for case in EVERY if case.op not in BY_NAME and case.op not in UNNAMED and not case.special]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in REST])
def test_a_reference_in_float32_is_within_its_own_bound(case: Sample) -> None:
    call = case.in_dtype(float32)
    with np.errstate(all="ignore"), mirrored(call.attributes):
        made = OPSET[case.op].reference(*map(_single, call.values), **call.attributes)
    outs = made if isinstance(made, tuple) and not hasattr(made, "_fields") else (made,)
    declared = [r.type for r in call.graph().nodes[-1].results]
    for expected, out, promised in zip(call.bounded(), outs, declared, strict=True):
        kind = promised.dtype if isinstance(promised, TensorType) else float32
        for e, o in zip(*(x if hasattr(x, "_fields") else (x,) for x in (expected, out)), strict=True):
            verdict = check(e, np.asarray(o, np.float64), kind)
            assert verdict.ok, verdict


def _single(x: Any) -> Any:
    """The floats of an operand in float32."""
    if hasattr(x, "_fields"):
        return type(x)(*map(_single, x))
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
