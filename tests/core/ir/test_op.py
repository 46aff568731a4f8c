"""Schemas of ops: what a signature says, and what a wrong call says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.core import ops
from xinheng.core.errors import GraphError
from xinheng.core.ir import Builder, Op, TensorType, Tolerance, WeightType, op, paged_kv, require, sym
from xinheng.core.ir.dim import Dim
from xinheng.core.ir.dtype import DType, float32, int32
from xinheng.core.ir.op import OPS, State, Tensor, Weight, results

X = TensorType(float32, (3, 4))


def sample(
    x: Tensor,
    weight: Weight,
    cache: State | None = None,
    bias: Tensor | None = None,
    *,
    eps: float,
    count: int = 2,
    shape: tuple[Dim, ...] = (),
    pairs: tuple[int, ...] | None = None,
    size: Dim = 1,
    dtype: DType = float32,
    mode: str = "a",
    flag: bool = False,
    value: float | int | bool = 0,
) -> Tensor:
    """A sample.

    More of it.
    """
    return x


SAMPLE: Op[..., Any] = Op(sample, Tolerance.EXACT, 3)


@SAMPLE.infer
def _(x: TensorType, *others: Any, **attributes: Any) -> TensorType:
    require(x.rank < 3, "rank is too high")
    return TensorType(x.dtype, attributes["shape"] or x.shape)


def values() -> tuple[Builder, Any, Any]:
    b = Builder("g")
    return b, b.input("x", X), b.parameter("w", WeightType((4, 4), "float32"))


def test_the_signature_is_the_schema() -> None:
    assert [(o.name, o.kind, o.optional, o.variadic) for o in SAMPLE.operands] == [
        ("x", "Tensor", False, False),
        ("weight", "Weight", False, False),
        ("cache", "State", True, False),
        ("bias", "Tensor", True, False),
    ]
    assert [a.name for a in SAMPLE.attributes if a.required] == ["eps"]
    assert SAMPLE.name == "sample"
    assert SAMPLE.doc == SAMPLE.__doc__ == "A sample.\n\nMore of it."
    assert SAMPLE.signature.startswith("sample(x: Tensor, weight: Weight, cache: State | None = None")
    assert (SAMPLE.since, SAMPLE.tolerance, SAMPLE.composite) == (3, Tolerance.EXACT, False)
    assert repr(SAMPLE) == "<op sample>"
    assert "sample" not in OPS


def test_a_call_adds_a_node_with_everything_filled_in() -> None:
    b, x, w = values()
    made = SAMPLE(x, w, bias=x, eps=1)
    node = b.build(made).nodes[0]
    assert [v and v.name for v in node.operands] == ["x", "w", None, "x"]
    filled = {"eps": 1.0, "count": 2, "shape": (), "pairs": None, "size": 1, "dtype": float32, "mode": "a"}
    assert node.attributes == filled | {"flag": False, "value": 0}
    assert type(node.attributes["eps"]) is float
    assert node.operand("bias") is x
    assert node.operand("cache") is None
    with pytest.raises(GraphError, match="op 'sample' has no operand 'other'"):
        node.operand("other")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "sample: attribute 'eps' is required"),
        ({"eps": 1, "cuont": 3}, "unknown attribute 'cuont', did you mean 'count'"),
        ({"eps": 1, "zzz": 3}, r"unknown attribute 'zzz'$"),
        ({"eps": "1"}, "attribute 'eps' must be float, not '1'"),
        ({"eps": True}, "attribute 'eps' must be float, not True"),
        ({"eps": None}, "attribute 'eps' must be float, not None"),
        ({"eps": 1, "count": 2.0}, "attribute 'count' must be int"),
        ({"eps": 1, "count": True}, "attribute 'count' must be int"),
        ({"eps": 1, "flag": 1}, "attribute 'flag' must be bool"),
        ({"eps": 1, "mode": 1}, "attribute 'mode' must be str"),
        ({"eps": 1, "dtype": "flaot32"}, "unknown dtype 'flaot32'"),
        ({"eps": 1, "dtype": 32}, "attribute 'dtype' must be DType"),
        ({"eps": 1, "size": 1.5}, "attribute 'size' must be Dim"),
        ({"eps": 1, "shape": (1, "a")}, "attribute 'shape' must be tuple"),
        ({"eps": 1, "shape": 3}, "attribute 'shape' must be tuple"),
        ({"eps": 1, "pairs": (1, sym("n"))}, "attribute 'pairs' must be tuple"),
        ({"eps": 1, "shape": (2, -1)}, "sample: the result would be float32\\[2, -1\\], with a negative size"),
    ],
)
def test_wrong_attributes(attributes: dict[str, Any], message: str) -> None:
    _, x, w = values()
    with pytest.raises(GraphError, match=message):
        SAMPLE(x, w, **attributes)


def test_attributes_take_their_canonical_form() -> None:
    b, x, w = values()
    SAMPLE(x, w, eps=np.float32(0.5), count=np.int64(3), shape=[sym("n"), np.int32(2)], dtype="int32", value=2**60)
    attributes = b.build(x).nodes[0].attributes
    assert attributes["eps"] == 0.5
    assert type(attributes["count"]) is int
    assert attributes["shape"] == (sym("n"), 2)
    assert attributes["dtype"] is int32
    assert attributes["value"] == 2**60
    assert type(attributes["value"]) is int


def test_wrong_operands() -> None:
    b, x, w = values()
    cache = b.state("cache", paged_kv(1, 2, 2, "float32"))
    for operands, message in (
        ((x,), "sample: operand 'weight' is required"),
        ((x, None), "sample: operand 'weight' is required"),
        ((w, w), "sample: operand 'x' must be a Tensor, not weight<float32>\\[4, 4\\]"),
        ((x, x), "sample: operand 'weight' must be a Weight, not float32\\[3, 4\\]"),
        ((x, w, x), "sample: operand 'cache' must be a State"),
        ((x, w, cache, cache), "sample: operand 'bias' must be a Tensor, not state<paged_kv"),
        ((x, w, None, None, x), "sample: takes 4 operands, got 5"),
        ((x, w, None, np.zeros(3)), "is not a value of a graph"),
        ((x, w, None, True), "operand True is not a value of a graph"),
        ((), "needs at least one value of a graph; use Builder.call"),
        ((1.0, 2.0), "needs at least one value of a graph"),
    ):
        with pytest.raises(GraphError, match=message):
            SAMPLE(*operands, eps=1.0)
    with pytest.raises(GraphError, match="unknown attribute 'x'"):
        SAMPLE(x, w, x=x, eps=1.0)
    with pytest.raises(GraphError, match="sample: rank is too high"):
        SAMPLE(b.input("deep", TensorType(float32, (1, 1, 1))), w, eps=1.0)


def test_values_of_other_graphs_are_refused() -> None:
    _, x, _ = values()
    _, y, _ = values()
    with pytest.raises(GraphError, match="add: value %x belongs to graph 'g'"):
        ops.add(x, y)


def test_variadic_operands() -> None:
    b, x, _ = values()
    made = ops.concat(x, x, x, axis=0)
    assert made.shape == (9, 4)
    with pytest.raises(GraphError, match="concat: needs at least one tensor"):
        b.call(ops.concat, (), {"axis": 0})
    with pytest.raises(GraphError, match="concat: operand 'xs' is required"):
        ops.concat(x, None, axis=0)


def test_numbers_take_the_dtype_of_the_first_tensor_that_is_not_bool() -> None:
    b, x, _ = values()
    graph = b.build(ops.where(ops.lt(x, np.float32(0.5)), 2, x))
    assert [(c.data, c.dtype) for c in graph.constants] == [(0.5, float32), (2.0, float32)]
    n = b.input("n", TensorType(int32, (2,)))
    assert ops.add(n, 3).dtype is int32
    with pytest.raises(GraphError, match=r"constant 2\.5 is not an integer, but its dtype is int32"):
        ops.add(n, 2.5)
    with pytest.raises(GraphError, match="needs a tensor beside it"):
        b.call(ops.add, (1.0, 2.0), {})


def test_composites_and_primitives() -> None:
    _, x, _ = values()
    assert ops.silu.composite
    assert not ops.exp.composite
    assert results(ops.silu.expand(x))[0].type == x.type
    with pytest.raises(GraphError, match="op 'exp' is a primitive; it has no decomposition"):
        ops.exp.expand(x)
    with pytest.raises(GraphError, match="op 'ruleless' has no infer rule"):
        Op(ruleless, Tolerance.EXACT, 1)(x)


def ruleless(x: Tensor) -> Tensor:
    """Nothing is inferred of it."""
    return x


def test_names_are_taken_once() -> None:
    def add(x: Tensor) -> Tensor:
        """Another add."""
        return x

    with pytest.raises(GraphError, match="op 'add' is defined twice"):
        op(tolerance=Tolerance.EXACT)(add)
    assert OPS["add"] is ops.add


def test_operands_without_a_known_annotation_are_refused() -> None:
    def strange(x: int) -> Tensor:
        """Strange."""
        return x

    with pytest.raises(GraphError, match="operand 'x' is annotated 'int'; write Tensor, Weight or State"):
        Op(strange, Tolerance.EXACT, 1)


def test_a_new_optional_operand_does_not_break_old_callers() -> None:
    b, x, w = values()
    assert b.call(ops.linear, (x, w), {}).shape == (3, 4)
    assert [v and v.name for v in b.build(x).nodes[0].operands] == ["x", "w", None]
