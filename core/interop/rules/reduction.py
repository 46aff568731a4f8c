"""Import rules of reductions, running totals and orderings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...ir.dim import Expr
from ...ir.dtype import DType, bool_, int64, uint8
from ...ir.graph import Value
from ..call import Call, like, rule, wide
from .movement import flipped, transposed


def opposite(x: Value) -> Value:
    """A function of x that turns the order around: -x, and for integers -1 - x, which cannot overflow."""
    if x.dtype.is_float:
        negative: Value = ops.neg(x)
        return negative
    made: Value = ops.sub(-1 if x.dtype.kind == "int" else 2**x.dtype.bits - 1, x)
    return made


def lowest(dtype: DType) -> Any:
    """The identity of a maximum."""
    return -math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def amax(c: Call, x: Value, axis: int) -> Any:
    """The maximum with axes kept; of nothing, it is the lowest value."""
    if x.shape[axis] == 0:
        return c.full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), lowest(x.dtype), x.dtype)
    return ops.amax(x, axis=axis, keepdims=True)


def amin(c: Call, x: Value, axis: int) -> Any:
    return opposite(amax(c, opposite(x), axis))


def over(axes: list[int], x: Value, fold: Callable[[Value, int], Any]) -> Value:
    """A reduction of one axis after the other, which keep size 1."""
    for axis in axes:
        x = fold(x, axis)
    return x


def squeezed(x: Value, axes: list[int]) -> Value:
    """x without some axes of size 1."""
    made: Value = ops.reshape(x, shape=tuple(d for i, d in enumerate(x.shape) if i not in axes))
    return made


def _add(x: Value, axis: int) -> Any:
    return ops.sum(x, axis=axis, keepdims=True)


def _log_sum_exp(c: Call, x: Value, axes: list[int]) -> Any:
    top = over(axes, x, lambda y, axis: amax(c, y, axis))
    safe = ops.where(ops.isfinite(top), top, 0.0)
    return ops.add(ops.log(over(axes, ops.exp(ops.sub(x, safe)), _add)), safe)


def _mean(c: Call, x: Value, axes: list[int]) -> Any:
    if x.dtype.is_float:
        return over(axes, x, lambda y, axis: ops.mean(y, axis=axis, keepdims=True))
    total, count = over(axes, x, _add), 1
    for axis in axes:
        size = x.shape[axis]
        if isinstance(size, Expr):
            raise c.refuse("the mean of integers over a symbolic axis is not supported")
        count *= size
    return ops.trunc_div(total, count)


_REDUCTIONS: dict[str, Callable[[Call, Value, list[int]], Any]] = {
    "ReduceL1": lambda c, x, axes: over(axes, ops.abs(x), _add),
    "ReduceL2": lambda c, x, axes: ops.sqrt(over(axes, ops.square(x), _add)),
    "ReduceLogSum": lambda c, x, axes: ops.log(over(axes, x, _add)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": lambda c, x, axes: over(axes, x, lambda y, axis: amax(c, y, axis)),
    "ReduceMean": _mean,
    "ReduceMin": lambda c, x, axes: over(axes, x, lambda y, axis: amin(c, y, axis)),
    "ReduceProd": lambda c, x, axes: over(axes, x, lambda y, axis: ops.prod(y, axis=axis, keepdims=True)),
    "ReduceSum": lambda c, x, axes: over(axes, x, _add),
    "ReduceSumSquare": lambda c, x, axes: over(axes, ops.square(x), _add),
}
_IN_FLOATS = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")


@rule(*_REDUCTIONS)
def _reduce(c: Call) -> Any:
    given = c.x(0)
    axes = c.axes(1, given.tensor.rank)
    if not axes:
        axes = [] if c.attr("noop_with_empty_axes", 0) else list(range(given.tensor.rank))
    x = ops.cast(given, dtype=uint8) if given.dtype is bool_ else wide(given)
    if c.op in _IN_FLOATS and not x.dtype.is_float:
        raise c.refuse(f"needs floats, not {x.dtype}")
    y = like(_REDUCTIONS[c.op](c, x, axes), given)
    return y if c.attr("keepdims", 1) else squeezed(y, axes)


@rule("ArgMax", "ArgMin")
def _arg_extreme(c: Call) -> Any:
    x = c.x(0)
    axis = c.axis(0, x.tensor.rank)
    if c.op == "ArgMin":
        x = opposite(x)
    last = bool(c.attr("select_last_index", 0))
    if last:
        x = flipped(c, x, axis)
    index = ops.cast(ops.argmax(x, axis=axis), dtype=int64)
    if last:
        index = ops.sub(c.scalar(x.shape[axis] - 1, int64), index)
    if c.attr("keepdims", 1):
        index = ops.reshape(index, shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return index


@rule("TopK")
def _top_k(c: Call) -> Any:
    x = c.x(0)
    k = c.attr("k") if c.attr("k") is not None else c.dims(1, "k")[0]
    axis = c.axis(-1, x.tensor.rank)
    order = [*(i for i in range(x.tensor.rank) if i != axis), axis]
    y = transposed(x, order)
    largest = c.attr("largest", 1)
    values, indices = ops.topk(y if largest else opposite(y), k=k)
    if not largest:
        values = opposite(values)
    back = [order.index(i) for i in range(len(order))]
    return transposed(values, back), ops.cast(transposed(indices, back), dtype=int64)


@rule("CumSum", "CumProd")
def _cumulative(c: Call) -> Any:
    x = c.x(0)
    axis = int(c.numbers(1, "axis").reshape(-1)[0]) % x.tensor.rank
    if c.attr("reverse", 0):
        x = flipped(c, x, axis)
    if c.attr("exclusive", 0):
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        first = c.full(shape, 0 if c.op == "CumSum" else 1, x.dtype)
        x = ops.concat(first, ops.slice(x, axis=axis, start=0, stop=x.shape[axis] - 1), axis=axis)
    y = ops.cumsum(x, axis=axis) if c.op == "CumSum" else ops.cumprod(x, axis=axis)
    return flipped(c, y, axis) if c.attr("reverse", 0) else y


def _flattened(c: Call, x: Value) -> tuple[Value, int]:
    """Before opset 13 these ops see a matrix: the axes from `axis` on count as one."""
    if c.version >= 13:
        return x, c.axis(-1, x.tensor.rank)
    from ...ir.dim import product

    axis = c.axis(1, x.tensor.rank)
    made: Value = ops.reshape(x, shape=(product(x.shape[:axis]), product(x.shape[axis:])))
    return made, 1


@rule("Softmax", "LogSoftmax")
def _softmax(c: Call) -> Any:
    given = c.x(0)
    x, axis = _flattened(c, given)
    if c.op == "Softmax":
        y = ops.softmax(x, axis=axis)
    else:
        y = wide(x)
        shifted = ops.sub(y, ops.amax(y, axis=axis, keepdims=True))
        y = like(ops.sub(shifted, ops.log(ops.sum(ops.exp(shifted), axis=axis, keepdims=True))), x)
    return y if y.shape == given.shape else ops.reshape(y, shape=given.shape)


@rule("Hardmax")
def _hardmax(c: Call) -> Any:
    given = c.x(0)
    x, axis = _flattened(c, given)
    index = ops.reshape(ops.argmax(x, axis=axis), shape=(*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    from ...ir.dtype import int32

    steps = ops.reshape(c.arange(x.shape[axis], int32), shape=(x.shape[axis], *(1,) * (x.tensor.rank - 1 - axis)))
    return ops.reshape(like(ops.eq(index, steps), x), shape=given.shape)
