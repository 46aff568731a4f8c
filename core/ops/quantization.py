"""Quantised tensors: codes with scales, and products of codes."""

from __future__ import annotations

import numpy as np

from ..ir import numeric
from ..ir.dim import Dim, broadcast, require_equal
from ..ir.dtype import DType, float32, float64, int8, int32
from ..ir.op import Tensor, Tolerance, op, require
from ..ir.types import TensorType
from .contraction import matmul
from .elementwise import abs as absolute
from .elementwise import add, cast, clamp, div, in_dtype, lt, mul, narrowed, round, sub, where, widened
from .movement import axis_of, permute, reshape
from .reduction import amax


def code_range(dtype: DType) -> tuple[float, float]:
    """The codes of a dtype; those of signed integers are symmetric, so -128 is never written."""
    if dtype.is_float:
        return -dtype.largest, dtype.largest
    return (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (1 - 2 ** (dtype.bits - 1), 2 ** (dtype.bits - 1) - 1)


def _codes(x: Tensor, zero_point: Tensor | None, dtype: DType) -> Tensor:
    """The codes of numbers that are divided by their scale."""
    low, high = code_range(dtype)
    if dtype.is_float:
        return numeric.store(np.minimum(np.maximum(x, low), high), dtype)
    whole = np.rint(x) if zero_point is None else np.rint(x) + zero_point
    whole = np.minimum(np.maximum(whole, int(low)), int(high))
    return whole if hasattr(type(x), "__word__") else np.asarray(whole).astype(np.int64)


def _graph_codes(x: Tensor, zero_point: Tensor | None, dtype: DType) -> Tensor:
    """The graph form of `_codes`."""
    low, high = code_range(dtype)
    if dtype.is_integer:
        x = round(x) if zero_point is None else add(round(x), in_dtype(zero_point, x.dtype))
    return cast(clamp(x, low=float(low), high=float(high)), dtype=dtype)


def _is_code(dtype: DType) -> bool:
    return dtype.is_integer or (dtype.is_float and dtype.bits == 8)


def _working(dtype: DType) -> DType:
    """What a result of `dtype` is computed in."""
    return float64 if dtype == float64 else float32


def _along(scale: Tensor, x: Tensor, axis: int | None) -> Tensor:
    """A scale [n] shaped to multiply along one axis of x, or one of a single element to multiply all of it."""
    if axis is None:
        return np.reshape(scale, ())
    shape = [1] * len(x.shape)
    shape[axis] = -1
    return np.reshape(scale, tuple(shape))


@op(tolerance=Tolerance.QUANTISE)
def quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, dtype: DType, axis: int | None = None
) -> Tensor:
    """round(x / scale) + zero_point, clamped to the codes of `dtype`, as that type.

    Halves go to the even integer; signed codes are symmetric, int8 spans -127 to 127. `scale` is float32 of one
    element, or [n] along `axis`; it divides. `zero_point` is int32 like it, and added after the rounding. Eight-bit
    floats are codes too: x / scale clamped to their finite range and rounded once, without zero point.
    """
    return _codes(x / _along(scale, x, axis), None if zero_point is None else _along(zero_point, x, axis), dtype)


def _check_scale(x: TensorType, scale: TensorType, zero_point: TensorType | None, axis: int | None) -> None:
    require(scale.dtype == float32, f"scale must be float32, not {scale.dtype}")
    require(
        zero_point is None or (zero_point.dtype == int32 and zero_point.shape == scale.shape),
        f"zero_point must be int32 like {scale}, not {zero_point}",
    )
    if axis is None:
        require(scale.shape in ((), (1,)), f"scale must have one element unless an axis is given, not {scale}")
    else:
        require(scale.rank == 1, f"scale must have one axis, not {scale}")
        require_equal(scale.shape[0], x.shape[axis_of(x, axis)], f"scale {scale} does not fit axis {axis} of {x}")


@quantize.infer
def _(x: TensorType, scale: TensorType, zero_point: TensorType | None, *, dtype: DType, axis: int | None) -> TensorType:
    require(x.dtype.is_float and _is_code(dtype), f"quantize turns floats into codes, not {x.dtype} into {dtype}")
    require(zero_point is None or dtype.is_integer, f"codes of {dtype} have no zero point")
    _check_scale(x, scale, zero_point, axis)
    return TensorType(dtype, x.shape)


def _placed(scale: Tensor, x: Tensor, axis: int | None) -> Tensor:
    """The graph form of `_along`."""
    if axis is None:
        return reshape(scale, shape=())
    shape: list[Dim] = [1] * x.tensor.rank
    shape[axis] = x.shape[axis]
    return reshape(scale, shape=tuple(shape))


@quantize.decompose
def _(x: Tensor, scale: Tensor, zero_point: Tensor | None, *, dtype: DType, axis: int | None) -> Tensor:
    wide = widened(x)
    scaled = div(wide, narrowed(_placed(scale, x, axis), wide))
    return _graph_codes(scaled, None if zero_point is None else _placed(zero_point, x, axis), dtype)


@op(tolerance=Tolerance.ELEMENTWISE)
def dequantize_linear(
    codes: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, dtype: DType, axis: int | None = None
) -> Tensor:
    """(codes - zero_point) * scale in at least float32, rounded once to `dtype`; operands as in `quantize`.

    Integer codes have at most 16 bits, so that the difference is exact.
    """
    if zero_point is None:
        return codes * _along(scale, codes, axis)
    return (np.asarray(codes).astype(np.int32) - _along(zero_point, codes, axis)) * _along(scale, codes, axis)


@dequantize_linear.infer
def _(
    codes: TensorType, scale: TensorType, zero_point: TensorType | None, *, dtype: DType, axis: int | None
) -> TensorType:
    require(_is_code(codes.dtype) and codes.dtype.bits <= 16, f"codes must have at most 16 bits, not {codes.dtype}")
    require(dtype.is_float, f"turns codes into floats, not into {dtype}")
    require(zero_point is None or codes.dtype.is_integer, f"codes of {codes.dtype} have no zero point")
    _check_scale(codes, scale, zero_point, axis)
    return TensorType(dtype, codes.shape)


@dequantize_linear.decompose
def _(codes: Tensor, scale: Tensor, zero_point: Tensor | None, *, dtype: DType, axis: int | None) -> Tensor:
    wide = codes
    if zero_point is not None:
        wide = sub(cast(codes, dtype=int32), _placed(zero_point, codes, axis))
    kind = _working(dtype)
    return in_dtype(mul(cast(wide, dtype=kind), in_dtype(_placed(scale, codes, axis), kind)), dtype)


@op(tolerance=Tolerance.QUANTISE)
def dynamic_quant(x: Tensor, *, dtype: DType = int8) -> Tensor:
    """Codes of each row of the last axis with a scale of its own: codes like x in `dtype`, and float32 [..., 1].

    scale = largest magnitude / largest code (1 for a row of zeros); codes = x / scale, rounded half to even to signed
    integers, or to an eight-bit float. Multiplying by the scale gives x back.
    """
    _, high = code_range(dtype)
    top = np.max(np.abs(x), axis=-1, keepdims=True)
    scale = np.where(top > 0, top / float(high), 1.0)
    return _codes(x / scale, None, dtype), scale


@dynamic_quant.infer
def _(x: TensorType, *, dtype: DType) -> tuple[TensorType, TensorType]:
    require(x.rank >= 1 and x.dtype.is_float, f"needs a float tensor of at least one axis, not {x}")
    require(_is_code(dtype) and dtype.kind != "uint", f"codes must be signed, not {dtype}")
    return TensorType(dtype, x.shape), TensorType(float32, (*x.shape[:-1], 1))


@dynamic_quant.decompose
def _(x: Tensor, *, dtype: DType) -> Tensor:
    _, high = code_range(dtype)
    wide = widened(x)
    top = amax(absolute(wide), axis=-1, keepdims=True)
    scale = where(lt(0.0, top), div(top, float(high)), 1.0)
    return _graph_codes(div(wide, scale), None, dtype), in_dtype(scale, float32)


@op(tolerance=Tolerance.EXACT)
def int_matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product of int8 or uint8 matrices in int32: [..., rows, k] times [..., k, columns]; overflow wraps."""
    return np.matmul(np.asarray(a).astype(np.int32), np.asarray(b).astype(np.int32))


@int_matmul.infer
def _(a: TensorType, b: TensorType) -> TensorType:
    require(a.rank >= 2 and b.rank >= 2, f"needs matrices, got {a} and {b}")
    require(
        a.dtype.is_integer and b.dtype.is_integer and a.dtype.bits == 8 == b.dtype.bits,
        f"needs 8-bit integers, not {a} and {b}",
    )
    require_equal(a.shape[-1], b.shape[-2], f"inner sizes of {a} and {b} differ")
    return TensorType(int32, (*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))


@op(tolerance=Tolerance.CONTRACTION)
def quant_matmul(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None = None, *, dtype: DType
) -> Tensor:
    """Codes times codes, scaled per row and per column: x [rows, k] and weight [columns, k] to [rows, columns].

    Both are int8 (W8A8), or both eight-bit floats of one kind; x_scale is float32 [rows, 1], weight_scale float32
    [columns], bias [columns] of `dtype`. The product of integers is exact, that of floats accumulates in float32; then
    x_scale and weight_scale multiply it in at least float32 and the bias is added, before the one rounding to `dtype`.
    """
    if hasattr(type(x), "__word__") or np.asarray(x).dtype.kind == "f":
        product = np.matmul(x, np.swapaxes(weight, -1, -2))
    else:
        product = int_matmul.reference(x, np.swapaxes(weight, -1, -2))
    scaled = product * x_scale * weight_scale
    return scaled if bias is None else scaled + bias


@quant_matmul.infer
def _(
    x: TensorType,
    weight: TensorType,
    x_scale: TensorType,
    weight_scale: TensorType,
    bias: TensorType | None,
    *,
    dtype: DType,
) -> TensorType:
    fits = x.rank == weight.rank == 2 and x.dtype == weight.dtype
    coded = x.dtype == int8 or (x.dtype.is_float and x.dtype.bits == 8)
    require(fits and coded, f"needs matrices of int8, or of one eight-bit float, not {x} and {weight}")
    require(dtype.is_float, f"the result must be float, not {dtype}")
    require_equal(x.shape[1], weight.shape[1], f"{x} and {weight} have different widths")
    require(x_scale.dtype == float32 == weight_scale.dtype, "scales must be float32")
    require(x_scale.rank == 2 and x_scale.shape[1] == 1, f"x_scale must be [rows, 1], not {x_scale}")
    require_equal(x_scale.shape[0], x.shape[0], f"x_scale {x_scale} does not fit {x}")
    require(weight_scale.shape == (weight.shape[0],), f"weight_scale must be [{weight.shape[0]}], not {weight_scale}")
    require(bias is None or bias == TensorType(dtype, (weight.shape[0],)), f"bias must be {dtype}[{weight.shape[0]}]")
    return TensorType(dtype, (x.shape[0], weight.shape[0]))


@quant_matmul.decompose
def _(x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, bias: Tensor | None, *, dtype: DType) -> Tensor:
    kind, across = _working(dtype), permute(weight, axes=(1, 0))
    if x.dtype.is_float:
        product = matmul(cast(x, dtype=kind), cast(across, dtype=kind))
    else:
        product = cast(int_matmul(x, across), dtype=kind)
    scaled = mul(mul(product, in_dtype(x_scale, kind)), in_dtype(weight_scale, kind))
    return in_dtype(scaled if bias is None else add(scaled, in_dtype(bias, kind)), dtype)
