"""Import rules of elementwise arithmetic, comparison and logic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops
from ...ir.dim import broadcast
from ...ir.dtype import bool_, float64, int32, int64
from ...ir.graph import Value
from ..call import Call, like, rule, wide

_DIRECT: dict[str, Callable[..., Any]] = {
    "Abs": ops.abs,
    "Cos": ops.cos,
    "Erf": ops.erf,
    "Exp": ops.exp,
    "Floor": ops.floor,
    "Identity": lambda x: x,
    "Log": ops.log,
    "Neg": ops.neg,
    "Not": ops.logical_not,
    "Reciprocal": ops.reciprocal,
    "Round": ops.round,
    "Sigmoid": ops.sigmoid,
    "Sin": ops.sin,
    "Sqrt": ops.sqrt,
    "Tanh": ops.tanh,
    "Atan": ops.atan,
}
_PAIRS: dict[str, Callable[..., Any]] = {
    "Add": ops.add,
    "And": ops.logical_and,
    "BitwiseAnd": ops.bitwise_and,
    "Equal": ops.eq,
    "Less": ops.lt,
    "LessOrEqual": ops.le,
    "Greater": lambda a, b: ops.lt(b, a),
    "GreaterOrEqual": lambda a, b: ops.le(b, a),
    "Mul": ops.mul,
    "Or": ops.logical_or,
    "Sub": ops.sub,
    "Xor": lambda a, b: ops.logical_not(ops.eq(a, b)),
}


@rule(*(name for name in _DIRECT if name != "Identity"))
def _direct(c: Call) -> Any:
    return _DIRECT[c.op](c.x(0))


@rule("Identity")
def _identity(c: Call) -> Any:
    return c.inputs[0]


def aligned(c: Call) -> tuple[Value, Value]:
    """Both operands; opsets below 7 may name the axis at which the second one starts."""
    a, b = c.x(0), c.x(1)
    if c.attr("broadcast", 0) and c.attr("axis") is not None:
        axis = c.axis(-1, a.tensor.rank)
        b = ops.reshape(b, shape=(*b.shape, *(1,) * (a.tensor.rank - axis - b.tensor.rank)))
    return a, b


@rule(*_PAIRS)
def _pair(c: Call) -> Any:
    return _PAIRS[c.op](*aligned(c))


@rule("Div")
def _div(c: Call) -> Any:
    a, b = aligned(c)
    return ops.div(a, b) if a.dtype.is_float else ops.trunc_div(a, b)


@rule("Mod")
def _mod(c: Call) -> Any:
    """With fmod=0 the sign of the divisor, with fmod=1 that of the dividend."""
    a, b = c.x(0), c.x(1)
    rest = ops.fmod(a, b)
    if c.attr("fmod", 0) or a.dtype.kind == "uint":
        return rest
    wrong = ops.logical_and(ops.logical_not(ops.eq(rest, 0)), xor(ops.lt(rest, 0), ops.lt(b, 0)))
    return ops.where(wrong, ops.add(rest, b), rest)


def xor(a: Value, b: Value) -> Value:
    """Exactly one of two bool tensors."""
    made: Value = ops.logical_not(ops.eq(a, b))
    return made


@rule("Pow")
def _pow(c: Call) -> Any:
    a, b = c.x(0), c.x(1)
    if a.dtype.is_integer:
        return like(ops.pow(ops.cast(a, dtype=float64), like(b, float64)), a)
    exponent = c.item(1).known
    if exponent is not None and exponent.size == 1 and exponent.dtype != object:
        value = float(exponent.reshape(()).astype(np.float64))
        shape = broadcast(a.shape, b.shape)
        if value in (1.0, 2.0, 0.5) and shape == a.shape:
            return a if value == 1.0 else ops.square(a) if value == 2.0 else ops.sqrt(a)
    return like(ops.pow(wide(a), like(b, wide(a))), a)


@rule("Ceil")
def _ceil(c: Call) -> Any:
    return ops.neg(ops.floor(ops.neg(c.x(0))))


@rule("Sign")
def _sign(c: Call) -> Any:
    x = c.x(0)
    up = like(ops.lt(0, x), x)
    down = like(ops.lt(x, 0), x)
    signs = ops.sub(up, down) if x.dtype.kind != "uint" else up
    return ops.where(ops.eq(x, x), signs, x) if x.dtype.is_float else signs


@rule("IsNaN")
def _is_nan(c: Call) -> Any:
    return ops.logical_not(ops.eq(c.x(0), c.x(0)))


@rule("IsInf")
def _is_inf(c: Call) -> Any:
    x = c.x(0)
    if x.dtype.name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"):
        raise c.refuse(f"{x.dtype} is not compared with infinity")
    wanted = [s for s, name in ((math.inf, "detect_positive"), (-math.inf, "detect_negative")) if c.attr(name, 1)]
    if not wanted:
        return c.full(x.shape, False, bool_)
    found = [ops.eq(x, s) for s in wanted]
    return found[0] if len(found) == 1 else ops.logical_or(*found)


@rule("Where")
def _where(c: Call) -> Any:
    return ops.where(c.x(0), c.x(1), c.x(2))


@rule("Max", "Min", "Sum", "Mean")
def _variadic(c: Call) -> Any:
    function = {"Max": ops.maximum, "Min": ops.minimum, "Sum": ops.add, "Mean": ops.add}[c.op]
    first, *rest = c.all()
    total = first if c.op in ("Max", "Min") else wide(first)
    for x in rest:
        total = function(total, like(x, total))
    if c.op == "Mean":
        total = ops.div(total, float(len(c.inputs)))
    return like(total, first)


@rule("Clip")
def _clip(c: Call) -> Any:
    x = c.x(0)
    for index, name, function in ((1, "min", ops.maximum), (2, "max", ops.minimum)):
        if c.attr(name) is not None:
            x = function(x, float(c.attr(name)))
        elif c.has(index):
            x = function(x, ops.reshape(c.x(index), shape=()))
    return x


@rule("BitwiseOr")
def _bitwise_or(c: Call) -> Any:
    a, b = c.x(0), c.x(1)
    return ops.sub(ops.add(a, b), ops.bitwise_and(a, b))


@rule("BitwiseXor")
def _bitwise_xor(c: Call) -> Any:
    a, b = c.x(0), c.x(1)
    both = ops.bitwise_and(a, b)
    return ops.sub(ops.sub(ops.add(a, b), both), both)


@rule("BitwiseNot")
def _bitwise_not(c: Call) -> Any:
    x = c.x(0)
    return ops.sub(-1 if x.dtype.kind == "int" else 2**x.dtype.bits - 1, x)


@rule("BitShift")
def _bit_shift(c: Call) -> Any:
    """By powers of two from a table; a shift by all bits or more leaves only the sign."""
    x, bits = c.x(0), ops.cast(c.x(1), dtype=int64)
    direction = c.choice("direction", None, "LEFT", "RIGHT")
    width = x.dtype.bits
    inside = ops.logical_and(ops.lt(bits, width), ops.le(0, bits))
    amount = ops.where(inside, bits, 0)
    table = np.ones(1, np.int64) << np.arange(width, dtype=np.int64)
    factor = ops.index_select(c.constant(table.astype(x.dtype.numpy)), amount)
    empty: Any = (
        ops.where(ops.lt(x, 0), c.scalar(-1, x.dtype), 0) if x.dtype.kind == "int" and direction == "RIGHT" else 0
    )
    if direction == "LEFT":
        return ops.where(inside, ops.mul(x, factor), empty)
    if x.dtype.kind == "uint":
        return ops.where(inside, ops.trunc_div(x, factor), empty)
    moved = ops.trunc_div(x, factor)
    lower = ops.logical_and(ops.lt(x, 0), ops.logical_not(ops.eq(ops.mul(moved, factor), x)))
    top = ops.eq(amount, width - 1)
    return ops.where(ops.logical_and(inside, ops.logical_not(top)), ops.where(lower, ops.sub(moved, 1), moved), empty)


@rule("Tan")
def _tan(c: Call) -> Any:
    x = wide(c.x(0))
    return like(ops.div(ops.sin(x), ops.cos(x)), c.x(0))


def _root(a: Value, b: Value) -> Value:
    """sqrt(a) sqrt(b), which is NaN where one of them is negative."""
    made: Value = ops.mul(ops.sqrt(a), ops.sqrt(b))
    return made


def _mirrored(x: Value, y: Value) -> Value:
    """y with the sign of x."""
    made: Value = ops.where(ops.lt(x, 0.0), ops.neg(y), y)
    return made


def _arc_sine(x: Value) -> Any:
    return ops.atan(ops.div(x, _root(ops.sub(1.0, x), ops.add(1.0, x))))


def _arc_cosine(x: Value) -> Any:
    return ops.mul(ops.atan(ops.div(ops.sqrt(ops.sub(1.0, x)), ops.sqrt(ops.add(1.0, x)))), 2.0)


def _hyperbolic_sine(x: Value) -> Any:
    e = ops.expm1(ops.abs(x))
    return _mirrored(x, ops.mul(ops.add(e, ops.div(e, ops.add(e, 1.0))), 0.5))


def _hyperbolic_cosine(x: Value) -> Any:
    return ops.mul(ops.add(ops.exp(x), ops.exp(ops.neg(x))), 0.5)


def _area_sine(x: Value) -> Any:
    size, squared = ops.abs(x), ops.square(x)
    rest = ops.div(squared, ops.add(ops.sqrt(ops.add(squared, 1.0)), 1.0))
    return _mirrored(x, ops.log1p(ops.add(size, rest)))


def _area_cosine(x: Value) -> Any:
    above = ops.sub(x, 1.0)
    return ops.log1p(ops.add(above, _root(above, ops.add(x, 1.0))))


def _area_tangent(x: Value) -> Any:
    return ops.mul(ops.log1p(ops.div(ops.mul(x, 2.0), ops.sub(1.0, x))), 0.5)


_INVERSE: dict[str, Callable[[Value], Any]] = {
    "Asin": _arc_sine,
    "Acos": _arc_cosine,
    "Sinh": _hyperbolic_sine,
    "Cosh": _hyperbolic_cosine,
    "Asinh": _area_sine,
    "Acosh": _area_cosine,
    "Atanh": _area_tangent,
}


@rule(*_INVERSE)
def _inverse(c: Call) -> Any:
    return like(_INVERSE[c.op](wide(c.x(0))), c.x(0))


@rule("Trilu")
def _trilu(c: Call) -> Any:
    x = c.x(0)
    shift = c.scalar(c.dims(1, "k")[0], int32) if c.has(1) else c.scalar(0, int32)
    rows = ops.reshape(c.arange(x.shape[-2], int32), shape=(x.shape[-2], 1))
    columns = c.arange(x.shape[-1], int32)
    diagonal = ops.add(rows, shift)
    kept = ops.le(diagonal, columns) if c.attr("upper", 1) else ops.le(columns, diagonal)
    return ops.where(kept, x, c.full((), False if x.dtype is bool_ else 0, x.dtype))
