"""The kernels of the Acme accelerator: a kernel has the operands and attributes of its op, under the same names.

Here is what level L0 wants, which is enough to run anything by decomposition, and three kernels that are worth their
speed. What is missing is decomposed into what is there, or moves to the fallback device; `xinheng explain` says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xinheng.core import KernelRegistry, Op, dtype, ops
from xinheng.core.ir.dtype import cast_to

from . import Card

KERNELS = KernelRegistry()
FLOAT32 = [dtype("float32")]


def kernel(op: Op[..., Any]) -> Callable[[Any], Any]:
    """Register a function as the kernel of an op."""
    return KERNELS.register(op, name=f"acme_{op.name}", dtypes=FLOAT32)


def calculate(function: Callable[..., Any], *operands: Any) -> Card:
    """Run an elementwise function; a constant comes as a Python number and takes the dtype of the other operand."""
    kinds = [x.data.dtype for x in operands if isinstance(x, Card)]
    arrays = (x.data if isinstance(x, Card) else np.asarray(x, kinds[-1]) for x in operands)
    with np.errstate(all="ignore"):
        return Card(np.asarray(function(*arrays)))


# ---------------------------------------------------------------------------------------- one element at a time
def sigmoid(x: Any) -> Any:
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def rsqrt(x: Any) -> Any:
    return np.float32(1) / np.sqrt(x)


UNARY: dict[Op[..., Any], Callable[[Any], Any]] = {
    ops.neg: np.negative,
    ops.abs: np.abs,
    ops.exp: np.exp,
    ops.log: np.log,
    ops.sin: np.sin,
    ops.cos: np.cos,
    ops.tanh: np.tanh,
    ops.sigmoid: sigmoid,
    ops.sqrt: np.sqrt,
    ops.rsqrt: rsqrt,
    ops.square: np.square,
    ops.floor: np.floor,
    ops.round: np.rint,
    ops.logical_not: np.logical_not,
}
BINARY: dict[Op[..., Any], Callable[[Any, Any], Any]] = {
    ops.add: np.add,
    ops.sub: np.subtract,
    ops.mul: np.multiply,
    ops.div: np.divide,
    ops.maximum: np.maximum,
    ops.minimum: np.minimum,
    ops.eq: np.equal,
    ops.lt: np.less,
    ops.le: np.less_equal,
    ops.logical_and: np.logical_and,
    ops.logical_or: np.logical_or,
}


def unary(function: Callable[[Any], Any]) -> Callable[[Card], Card]:
    return lambda x: calculate(function, x)


def binary(function: Callable[[Any, Any], Any]) -> Callable[[Card, Card], Card]:
    return lambda a, b: calculate(function, a, b)


for op, function in UNARY.items():
    kernel(op)(unary(function))
for op, function in BINARY.items():
    kernel(op)(binary(function))


@kernel(ops.where)
def where(condition: Card, a: Card, b: Card) -> Card:
    return calculate(np.where, condition, a, b)


@kernel(ops.clamp)
def clamp(x: Card, *, low: float | None = None, high: float | None = None) -> Card:
    y = x if low is None else calculate(np.maximum, x, low)
    return y if high is None else calculate(np.minimum, y, high)


@kernel(ops.cast)
def cast(x: Card, *, dtype: Any) -> Card:
    return Card(cast_to(x.data, dtype))


# ---------------------------------------------------------------------------------------- moves
@kernel(ops.full)
def full(*, shape: tuple[int, ...], value: Any, dtype: Any) -> Card:
    return Card(np.full(shape, value, dtype.numpy))


@kernel(ops.arange)
def arange(*, size: int, dtype: Any) -> Card:
    return Card(np.arange(size).astype(dtype.numpy))


@kernel(ops.reshape)
def reshape(x: Card, *, shape: tuple[int, ...]) -> Card:
    return Card(x.data.reshape(shape))


@kernel(ops.permute)
def permute(x: Card, *, axes: tuple[int, ...]) -> Card:
    return Card(x.data.transpose(axes).copy())


@kernel(ops.expand)
def expand(x: Card, *, shape: tuple[int, ...]) -> Card:
    return Card(np.broadcast_to(x.data, shape).copy())


@kernel(ops.concat)
def concat(*xs: Card, axis: int) -> Card:
    return Card(np.concatenate([x.data for x in xs], axis))


@kernel(ops.split)
def split(x: Card, *, sizes: tuple[int, ...], axis: int) -> Any:
    pieces = [Card(piece) for piece in np.split(x.data, np.cumsum(sizes)[:-1], axis)]
    return pieces[0] if len(pieces) == 1 else tuple(pieces)


@kernel(ops.slice)
def slice_(x: Card, *, axis: int, start: int, stop: int, step: int = 1) -> Card:
    return Card(np.moveaxis(np.moveaxis(x.data, axis, 0)[start:stop:step], 0, axis).copy())


@kernel(ops.index_select)
def index_select(x: Card, indices: Card, *, axis: int = 0) -> Card:
    return Card(np.take(x.data, indices.data, axis))


@kernel(ops.gather)
def gather(x: Card, indices: Card, *, axis: int = -1) -> Card:
    return Card(np.take_along_axis(x.data, indices.data, axis))


@kernel(ops.scatter)
def scatter(x: Card, indices: Card, updates: Card, *, axis: int, reduction: str = "none") -> Card:
    combine = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    result, places = x.data.copy(), list(np.indices(indices.data.shape))
    places[axis] = indices.data
    with np.errstate(all="ignore"):
        if reduction == "none":
            result[tuple(places)] = updates.data
        else:
            combine[reduction].at(result, tuple(places), updates.data)
    return Card(result)


# ---------------------------------------------------------------------------------------- along an axis
def folded(function: Callable[..., Any]) -> Callable[..., Card]:
    def fold(x: Card, *, axis: int, keepdims: bool = False) -> Card:
        with np.errstate(all="ignore"):
            return Card(np.asarray(function(x.data, axis=axis, keepdims=keepdims), x.data.dtype))

    return fold


def mean(x: Any, axis: int, keepdims: bool) -> Any:
    return np.sum(x, axis=axis, keepdims=keepdims) / np.float32(x.shape[axis])


for op, fold in {ops.sum: np.sum, ops.amax: np.max, ops.mean: mean}.items():
    kernel(op)(folded(fold))


@kernel(ops.argmax)
def argmax(x: Card, *, axis: int = -1) -> Card:
    return Card(np.asarray(np.argmax(x.data, axis=axis), np.int32))


@kernel(ops.topk)
def topk(x: Card, *, k: int) -> tuple[Card, Card]:
    last = x.data.shape[-1] - 1
    order = last - np.flip(np.argsort(np.flip(x.data, -1), axis=-1, kind="stable"), -1)[..., :k]
    return Card(np.take_along_axis(x.data, order, -1)), Card(order.astype(np.int32))


# ---------------------------------------------------------------------------------------- products and weights
@kernel(ops.matmul)
def matmul(a: Card, b: Card) -> Card:
    return calculate(np.matmul, a, b)


@kernel(ops.dequantize)
def dequantize(weight: Card, *, dtype: Any) -> Card:
    return weight


@kernel(ops.linear)
def linear(x: Card, weight: Card, bias: Card | None = None) -> Card:
    y = calculate(lambda x, weight: x @ weight.T, x, weight)
    return y if bias is None else calculate(np.add, y, bias)


# ---------------------------------------------------------------------------------------- worth a kernel of their own
@kernel(ops.rms_norm)
def rms_norm(x: Card, weight: Card, *, eps: float) -> Card:
    def normed(x: Any, weight: Any) -> Any:
        return x / np.sqrt(mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight

    return calculate(normed, x, weight)


@kernel(ops.silu_and_mul)
def silu_and_mul(gate: Card, up: Card) -> Card:
    return calculate(lambda gate, up: gate * sigmoid(gate) * up, gate, up)
