"""Import rules of quantised ops: codes, scales and zero points, per tensor, per axis or per block."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...ir.dim import Dim
from ...ir.dtype import DType, float32, float64, int32, uint8
from ...ir.graph import Value
from ..call import Call, like, rule, wide
from ..item import element_type
from .conversion import converted
from .convolution import geometry, kernel_of, whole
from .linear import multiplied


def placed(c: Call, part: Value, x: Value, axis: int, block: int) -> Value:
    """A scale or zero point shaped to meet x: a scalar, one per slice of an axis, or one per block of it."""
    if part.tensor.rank == 0 or part.shape == (1,):
        scalar: Value = ops.reshape(part, shape=())
        return scalar
    if part.tensor.rank == 1 and not block:
        shape: list[Dim] = [1] * x.tensor.rank
        shape[axis] = part.shape[0]
        vector: Value = ops.reshape(part, shape=tuple(shape))
        return vector
    if not block:
        raise c.refuse(f"scale {part.type} fits {x.type} only with attribute block_size")
    before, after = part.shape[: axis + 1], part.shape[axis + 1 :]
    wide_shape = (*before, block, *after)
    spread = ops.expand(ops.reshape(part, shape=(*before, 1, *after)), shape=wide_shape)
    long: Value = ops.reshape(spread, shape=(*before[:-1], before[-1] * block, *after))
    if long.shape[axis] != x.shape[axis]:
        long = ops.slice(long, axis=axis, start=0, stop=x.shape[axis])
    return long


def limits(dtype: DType) -> tuple[float, float]:
    """The smallest and the largest code of an integer type."""
    if dtype.kind == "uint":
        return 0.0, float(2**dtype.bits - 1)
    return -float(2 ** (dtype.bits - 1)), float(2 ** (dtype.bits - 1) - 1)


def coded(c: Call, scaled: Value, zero: Value | None, dtype: DType) -> Value:
    """round(scaled) + zero, saturated to an integer type; a float type rounds by itself."""
    if dtype.is_float:
        return converted(c, scaled, dtype)
    codes = ops.round(scaled)
    if zero is not None:
        codes = ops.add(codes, like(zero, codes))
    low, high = limits(dtype)
    made: Value = ops.cast(ops.clamp(codes, low=low, high=high), dtype=dtype)
    return made


def target_type(c: Call, zero: int) -> DType:
    if c.has(zero):
        return c.item(zero).dtype
    return element_type(c.attr("output_dtype")) if c.attr("output_dtype") else uint8


def _axis(c: Call, x: Value) -> int:
    """The axis of several scales; with one scale it means nothing, and its default may be out of range."""
    return c.axis(1, x.tensor.rank) if c.item(1).shape not in ((), (1,)) else 0


def stored(x: Value) -> Value:
    """x as float32 holds it: codes hang on roundings that the standard makes in between."""
    made: Value = ops.cast(x, dtype=float32)
    return made


@rule("QuantizeLinear")
def _quantize(c: Call) -> Any:
    given = c.x(0)
    axis, block = _axis(c, given), int(c.attr("block_size", 0))
    dtype = target_type(c, 2)
    x = like(given, float32) if given.dtype is not float64 else given
    scale = placed(c, like(c.x(1), x), x, axis, block)
    zero = None if dtype.is_float or not c.has(2) else placed(c, like(c.x(2), int32), x, axis, block)
    scaled = stored(ops.div(x, scale)) if x.dtype is float32 else ops.div(x, scale)
    precision = c.attr("precision", 0)
    if precision and element_type(precision).bits < 32:
        scaled = wide(like(scaled, element_type(precision)))
    return coded(c, scaled, zero, dtype)


@rule("DequantizeLinear")
def _dequantize(c: Call) -> Any:
    given = c.x(0)
    axis, block = _axis(c, given), int(c.attr("block_size", 0))
    out = element_type(c.attr("output_dtype")) if c.attr("output_dtype") else c.item(1).dtype
    codes = like(given, float32) if given.dtype.bits <= 16 or given.dtype.is_float else like(given, float64)
    if c.has(2) and not given.dtype.is_float:
        codes = ops.sub(codes, placed(c, like(c.x(2), codes), given, axis, block))
    scaled = ops.mul(codes, placed(c, like(c.x(1), codes), given, axis, block))
    return like(scaled, out)


@rule("DynamicQuantizeLinear")
def _dynamic_quantize(c: Call) -> Any:
    x = c.x(0)
    high, low = x, ops.neg(x)
    for axis in range(x.tensor.rank):
        high, low = (ops.amax(v, axis=axis, keepdims=True) for v in (high, low))
    top, bottom = (ops.maximum(ops.reshape(v, shape=()), 0.0) for v in (high, low))
    span = stored(ops.div(stored(ops.add(top, bottom)), 255.0))
    scale = ops.where(ops.eq(span, 0.0), 1.0, span)
    zero = ops.clamp(ops.round(stored(ops.div(bottom, scale))), low=0.0, high=255.0)
    codes = ops.clamp(ops.add(ops.round(stored(ops.div(x, scale))), zero), low=0.0, high=255.0)
    return ops.cast(codes, dtype=uint8), span, ops.cast(zero, dtype=uint8)


def _row_point(c: Call, index: int, zero: int) -> Value:
    """Codes less their zero point; one per row of a left operand, one per column of a right one."""
    x: Value = ops.cast(c.x(index), dtype=int32)
    if not c.has(zero):
        return x
    point = ops.cast(c.x(zero), dtype=int32)
    if point.tensor.rank == 1 and point.shape != (1,) and index == 0:
        point = ops.reshape(point, shape=(*point.shape, 1))
    elif point.shape == (1,):
        point = ops.reshape(point, shape=())
    made: Value = ops.sub(x, point)
    return made


@rule("MatMulInteger")
def _matmul_integer(c: Call) -> Any:
    return multiplied(_row_point(c, 0, 2), _row_point(c, 1, 3))


@rule("QLinearMatMul")
def _quantized_matmul(c: Call) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = range(8)
    rank = max(c.item(a).rank, c.item(b).rank)

    def less_zero(index: int, zero: int, rows: bool) -> Value:
        point = _vector(ops.cast(c.x(zero), dtype=int32), rank, rows)
        made: Value = ops.sub(ops.cast(c.x(index), dtype=int32), point)
        return made

    product = multiplied(less_zero(a, a_zero, True), less_zero(b, b_zero, False))
    scale = ops.mul(_vector(like(c.x(a_scale), float32), rank, True), _vector(like(c.x(b_scale), float32), rank, False))
    scale = ops.div(scale, _vector(like(c.x(y_scale), float32), rank, True))
    scaled = ops.mul(ops.cast(product, dtype=float32), scale)
    return coded(c, scaled, _vector(c.x(y_zero), rank, True), c.item(y_zero).dtype)


def _vector(x: Value, rank: int, rows: bool) -> Value:
    """A scale of a matrix: a scalar, one per row, or one per column."""
    if x.tensor.rank == 0 or x.shape == (1,):
        made: Value = ops.reshape(x, shape=())
    else:
        made = ops.reshape(x, shape=(*x.shape, 1)) if rows and x.tensor.rank == 1 and rank > 1 else x
    return made


@rule("QLinearConv")
def _quantized_conv(c: Call) -> Any:
    x, weight = whole(c, 0, 2), whole(c, 3, 5)
    bias = like(c.x(8), float64) if c.has(8) else None
    found = geometry(c, x, kernel_of(c, weight))
    total = ops.conv(x, weight, bias, **found, groups=int(c.attr("group", 1)))
    scales = [like(c.x(i), float32) for i in (1, 4, 6)]
    per_output = ops.div(ops.mul(scales[0], scales[1]), scales[2])
    if per_output.tensor.rank == 1 and per_output.shape != (1,):
        per_output = ops.reshape(per_output, shape=(*per_output.shape, *(1,) * (x.tensor.rank - 2)))
    else:
        per_output = ops.reshape(per_output, shape=())
    scaled = ops.mul(ops.cast(total, dtype=float32), per_output)
    return coded(c, scaled, ops.reshape(c.x(7), shape=()), c.item(7).dtype)
