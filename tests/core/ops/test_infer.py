"""What ops say about types: symbolic sizes, and the errors of calls that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xinheng.core import ops
from xinheng.core.errors import GraphError
from xinheng.core.ir import Builder, TensorType, WeightType, sym
from xinheng.core.ir.dim import maximum, minimum
from xinheng.core.ir.dtype import bool_, float16, float32, int32, int64
from xinheng.core.ops import OPSET, OpSet

N, M = sym("n"), sym("m")


class Values:
    """Values of the usual types, made as they are asked for: `f_n_4` is float32[n, 4]."""

    def __init__(self) -> None:
        self.b = Builder()

    def __getattr__(self, name: str) -> Any:
        letter, *sizes = name.split("_")
        kind = {"f": float32, "h": float16, "i": int32, "l": int64, "b": bool_}[letter[0]]
        shape = tuple(int(s) if s.isdigit() else sym(s) for s in sizes if s)
        return self.b.input(f"{name}.{len(self.b._names)}", TensorType(kind, shape))

    def weight(self, rows: int, columns: int, scheme: str = "float32") -> Any:
        return self.b.parameter(f"w.{len(self.b._names)}", WeightType((rows, columns), scheme))

    def call(self, op: Any, **attributes: Any) -> Any:
        return self.b.call(op, (), attributes)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda v: ops.add(v.f_n_1, v.f_4), (N, 4)),
        (lambda v: ops.where(v.b_n_1, v.f_4, 0.0), (N, 4)),
        (lambda v: ops.lt(v.f_n, v.f_n), (N,)),
        (lambda v: ops.reshape(v.f_n_4, shape=(2, N * 2)), (2, 2 * N)),
        (lambda v: ops.reshape(v.f_n_6, shape=(N * 3, 2)), (3 * N, 2)),
        (lambda v: ops.permute(v.f_n_4_2, axes=(2, 0, 1)), (2, N, 4)),
        (lambda v: ops.expand(v.f_1, shape=(N, 4)), (N, 4)),
        (lambda v: ops.concat(v.f_n_4, v.f_m_4, v.f_2_4, axis=0), (M + N + 2, 4)),
        (lambda v: ops.slice(v.f_n_8, axis=1, start=2, stop=8, step=4), (N, 2)),
        (lambda v: ops.slice(v.f_n, axis=0, start=0, stop=4), (minimum(N, 4),)),
        (lambda v: ops.slice(v.f_n, axis=0, start=1, stop=N), (maximum(N - minimum(N, 1), 0),)),
        (lambda v: ops.slice(v.f_n, axis=-1, start=0, stop=N), (N,)),
        (lambda v: ops.index_select(v.f_n_4, v.i_m_2, axis=0), (M, 2, 4)),
        (lambda v: ops.index_select(v.f_n_4, v.l, axis=-1), (N,)),
        (lambda v: ops.gather(v.f_n_4, v.i_n_m), (N, M)),
        (lambda v: ops.sum(v.f_n_4_2, axis=1), (N, 2)),
        (lambda v: ops.mean(v.f_n_4, axis=-1, keepdims=True), (N, 1)),
        (lambda v: ops.amax(v.i_n_4, axis=0), (4,)),
        (lambda v: ops.argmax(v.f_n_4), (N,)),
        (lambda v: ops.matmul(v.f_n_1_4_8, v.f_3_8_m), (N, 3, 4, M)),
        (lambda v: ops.linear(v.f_n_4, v.weight(3, 4)), (N, 3)),
        (lambda v: ops.linear(v.f_4, v.weight(3, 4), v.f_3), (3,)),
        (lambda v: ops.embedding(v.i_n_m, v.weight(3, 4), dtype=float16), (N, M, 4)),
        (lambda v: ops.dequantize(v.weight(3, 256, "q4_k:1+q6_k:2"), dtype=float32), (3, 256)),
        (lambda v: v.call(ops.full, shape=(N, 2), value=0.0, dtype=float32), (N, 2)),
        (lambda v: v.call(ops.arange, size=N + 1, dtype=int32), (N + 1,)),
        (lambda v: ops.topk(v.f_n_m, k=M // 2)[1], (N, M // 2)),
        (lambda v: ops.split(v.f_n_4, sizes=(1, 3), axis=-1)[1], (N, 3)),
        (lambda v: ops.split(v.f_n_4, sizes=(N - 1, 1), axis=0)[0], (N - 1, 4)),
        (lambda v: ops.rms_norm(v.f_n_4, v.f_4, eps=1e-6), (N, 4)),
    ],
)
def test_symbolic_shapes(make: Callable[[Values], Any], shape: tuple[Any, ...]) -> None:
    values = Values()
    assert make(values).shape == shape
    assert values.b.build().checks == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda v: ops.exp(v.i_4), "exp: needs a float tensor, not int32"),
        (lambda v: ops.neg(v.b_4), "neg: needs numbers, not bool"),
        (lambda v: ops.add(v.b_4, v.b_4), "add: needs numbers, not bool"),
        (lambda v: ops.add(v.f_4, v.h_4), "add: operands differ in dtype: float32 and float16; cast one of them"),
        (lambda v: ops.add(v.f_4, v.f_5), r"add: shapes \[4\], \[5\] do not broadcast: 4 is not 5"),
        (lambda v: ops.div(v.i_4, v.i_4), "div: div is for floats, not int32"),
        (lambda v: ops.logical_not(v.f_4), "logical_not: needs a bool tensor"),
        (lambda v: ops.logical_and(v.b_4, v.i_4), "logical_and: both operands must be bool"),
        (lambda v: ops.where(v.f_4, v.f_4, v.f_4), "where: the condition must be bool, not float32"),
        (lambda v: ops.gelu(v.f_4, approximate="erf"), "gelu: approximate must be 'none' or 'tanh', not 'erf'"),
        (lambda v: ops.gelu_and_mul(v.f_4, v.f_4, approximate="x"), "gelu_and_mul: approximate must be"),
        (lambda v: ops.silu_and_mul(v.i_4, v.i_4), "silu_and_mul: needs a float tensor"),
        (lambda v: ops.reshape(v.f_4_3, shape=(5, 2)), "reshape: .*does not have as many elements"),
        (lambda v: ops.reshape(v.f_n_3, shape=(-1, 3)), "reshape: "),
        (lambda v: ops.permute(v.f_4_3, axes=(0, 0)), "permute: axes .0, 0. are not a permutation"),
        (lambda v: ops.permute(v.f_4_3, axes=(0, -1)), "permute: axes .0, -1. are not a permutation"),
        (lambda v: ops.expand(v.f_4, shape=(3,)), "expand: shapes"),
        (lambda v: ops.expand(v.f_4, shape=(1,)), "expand: .*does not expand"),
        (lambda v: ops.expand(v.f_2_4, shape=(4,)), "expand: .*has more axes"),
        (lambda v: ops.concat(v.f_4, v.h_4, axis=0), "concat: float16.4. and float32.4. do not join"),
        (lambda v: ops.concat(v.f_4_2, v.f_4_3, axis=0), "concat: .*do not join along axis 0"),
        (lambda v: ops.concat(v.f_4, axis=1), "concat: axis 1 is out of range for float32.4."),
        (lambda v: ops.split(v.f_4, sizes=(1, 2), axis=0), "split: pieces of sizes .1, 2. do not fill axis 0"),
        (lambda v: ops.split(v.f_4, sizes=(-1, 5), axis=0), "split: the result would be float32.-1., with a negative"),
        (lambda v: ops.split(v.f_0, sizes=(), axis=0), "split: needs at least one piece"),
        (lambda v: ops.slice(v.f_4, axis=0, start=0, stop=4, step=0), "slice: step must be positive, not 0"),
        (lambda v: ops.slice(v.f_4, axis=0, start=-1, stop=4), "slice: start must not be negative, is -1"),
        (lambda v: ops.slice(v.f_4, axis=0, start=0, stop=-1), "slice: stop must not be negative, is -1"),
        (lambda v: ops.index_select(v.f_4, v.f_2), "index_select: indices must be integers, not float32"),
        (lambda v: ops.index_select(v.f_4, v.i_2, axis=1), "index_select: axis 1 is out of range"),
        (lambda v: ops.gather(v.f_4_3, v.i_4), "gather: indices .*must have as many axes"),
        (lambda v: ops.gather(v.f_4_3, v.i_3_3), "gather: indices .*do not fit .*outside axis"),
        (lambda v: ops.sum(v.b_4, axis=0), "sum: needs numbers, not bool"),
        (lambda v: ops.mean(v.i_4, axis=0), "mean: needs a float tensor, not int32"),
        (lambda v: ops.cumsum(v.f_4, axis=-2), "cumsum: axis -2 is out of range"),
        (lambda v: ops.topk(v.f_4, k=5), "topk: k is 5, the axis has 4 elements"),
        (lambda v: ops.topk(v.f_, k=0), "topk: needs at least one axis"),
        (lambda v: ops.softmax(v.i_4), "softmax: needs a float tensor"),
        (lambda v: ops.matmul(v.f_4, v.f_4_2), "matmul: needs matrices"),
        (lambda v: ops.matmul(v.f_2_4, v.h_4_2), "matmul: operands differ in dtype"),
        (lambda v: ops.matmul(v.f_2_4, v.f_3_2), "matmul: inner sizes of .*differ: 4 is not 3"),
        (lambda v: ops.matmul(v.f_2_2_4, v.f_3_4_2), "matmul: shapes .2., .3. do not broadcast"),
        (lambda v: ops.linear(v.f_2_4, v.weight(2, 3)), "linear: .*does not fit weight<float32>.2, 3.: 4 is not 3"),
        (lambda v: ops.linear(v.i_2_4, v.weight(2, 4)), "linear: needs a float tensor of at least one axis"),
        (lambda v: ops.linear(v.f_2_4, v.weight(2, 4), v.f_3), r"linear: bias must be float32\[2\]"),
        (
            lambda v: ops.linear(v.f_2_4, v.weight(2, 4, "q8_0")),
            "linear: .*'q8_0' codes blocks of 32 values; 4 columns",
        ),
        (lambda v: ops.linear(v.f_2_4, v.weight(2, 4, "q9_9")), "linear: .*q9_9"),
        (lambda v: ops.linear(v.f_2_4, v.weight(2, 4, "float32:1+float16:2")), "linear: .*covers 3 rows"),
        (lambda v: ops.embedding(v.f_2, v.weight(2, 4), dtype=float32), "embedding: indices must be integers"),
        (lambda v: ops.embedding(v.i_2, v.weight(2, 4), dtype=int32), "embedding: weights are read as floats"),
        (lambda v: ops.dequantize(v.weight(2, 4), dtype=int32), "dequantize: weights are read as floats, not int32"),
        (lambda v: ops.rms_norm(v.f_2_4, v.f_2, eps=1e-6), "rms_norm: weight .*must match the last axis"),
        (lambda v: ops.rms_norm(v.f_2_4, v.h_4, eps=1e-6), "rms_norm: weight is float16, x is float32"),
        (lambda v: ops.rms_norm(v.f_, v.f_, eps=1e-6), "rms_norm: weight .*must match the last axis"),
        (lambda v: v.call(ops.full, shape=(-1,), value=0.0, dtype=float32), "full: .*negative size"),
    ],
)
def test_calls_that_do_not_fit(make: Callable[[Values], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make(Values())


def test_weights_of_three_axes_are_for_other_readers() -> None:
    values = Values()
    experts = values.b.parameter("experts", WeightType((2, 3, 4), "float32"))
    with pytest.raises(GraphError, match="linear: needs a weight of two axes"):
        ops.linear(values.f_2_4, experts)


def test_equalities_that_may_hold_are_left_to_run_time() -> None:
    values = Values()
    ops.matmul(values.f_2_n, values.f_m_3)
    ops.linear(values.f_2_k, values.weight(2, 4))
    assert [(str(c.left), str(c.right)) for c in values.b.build().checks] == [("n", "m"), ("k", "4")]


def test_op_sets() -> None:
    assert OPSET.version == 1
    assert ops.add is OPSET["add"]
    assert "add" in OPSET
    assert "addd" not in OPSET
    assert list(OPSET) == sorted(OPSET)
    with pytest.raises(GraphError, match="op set xinheng 1 has no op 'adf', did you mean 'add'"):
        _ = OPSET["adf"]
    newer = OpSet("other", 3, {"add": ops.add})
    assert list(newer.at(1)) == ["add"]
    assert len(newer.at(0)) == 0
    assert newer.at(1).name == "other"


def test_the_package_exports_every_op() -> None:
    assert {name for name in ops.__all__ if name in OPSET} == set(OPSET)
    assert all(getattr(ops, name) is OPSET[name] for name in OPSET)


def test_orderings_of_unsigned_integers_and_nan() -> None:
    values, order = ops.topk.reference(np.array([0, 200, 7, 200], np.uint8), k=3)
    assert (values.tolist(), order.tolist()) == ([200, 200, 7], [1, 3, 2])
    values, order = ops.topk.reference(np.array([1.0, np.nan, np.inf, 1.0]), k=4)
    assert order.tolist() == [1, 2, 0, 3]
    assert ops.argmax.reference(np.array([1.0, np.nan, np.inf])) == 1


def test_integer_sums_wrap() -> None:
    assert ops.sum.reference(np.array([200, 100], np.uint8), axis=0) == 44
    assert ops.cumsum.reference(np.array([100, 100], np.int8), axis=0).tolist() == [100, -56]
