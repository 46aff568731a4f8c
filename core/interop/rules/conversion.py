"""Import rules of conversions between element types."""

from __future__ import annotations

import math
from typing import Any

from ... import ops
from ...ir.dtype import DType, float32, float64, int32
from ...ir.graph import Value
from ..call import Call, like, rule
from ..item import element_type

_FINITE = frozenset({"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"})


@rule("Cast")
def _cast(c: Call) -> Any:
    return converted(c, c.x(0), element_type(c.attr("to")))


@rule("CastLike")
def _cast_like(c: Call) -> Any:
    return converted(c, c.x(0), c.item(1).dtype)


def converted(c: Call, x: Value, dtype: DType) -> Value:
    """x in another element type, by the rules of ONNX's Cast for types without room for every number."""
    if x.dtype is dtype:
        return x
    if dtype.name == "float8_e8m0fnu":
        return _power_of_two(c, x)
    if dtype.is_integer and dtype.bits < 8:
        low = ops.bitwise_and(like(x, int32), 2**dtype.bits - 1)
        x = (
            low
            if dtype.kind == "uint"
            else ops.where(ops.lt(low, 2 ** (dtype.bits - 1)), low, ops.sub(low, 2**dtype.bits))
        )
    elif dtype.name in _FINITE:
        x = _limited(c, _computable(x), dtype)
    made: Value = ops.cast(x, dtype=dtype)
    return made


def _computable(x: Value) -> Value:
    """x in float32, or in float64 if it is wider or an integer that float32 may not hold."""
    if x.dtype.is_float and x.dtype.bits <= 32:
        made: Value = ops.cast(x, dtype=float32) if x.dtype.bits < 32 else x
        return made
    exact: Value = ops.cast(x, dtype=float64) if x.dtype is not float64 else x
    return exact


def _limited(c: Call, x: Value, dtype: DType) -> Value:
    """x within the range of a type: saturated, or NaN (infinite in e5m2) beyond it."""
    saturate = bool(c.attr("saturate", 1)) or dtype.name == "float4_e2m1fn"
    if saturate:
        limited: Value = ops.clamp(x, low=-dtype.largest, high=dtype.largest)
        return limited
    if dtype.name == "float8_e5m2":
        return x
    ulp = 2.0 ** (dtype.emax - dtype.precision + 1)
    if dtype.finite_largest:
        ulp = 2.0 ** (math.floor(math.log2(dtype.finite_largest)) - dtype.precision + 1)
    inside = ops.le(ops.abs(x), dtype.largest + ulp / 2)
    made: Value = ops.where(inside, ops.clamp(x, low=-dtype.largest, high=dtype.largest), math.nan)
    return made


def _power_of_two(c: Call, x: Value) -> Value:
    raise c.refuse("conversion to float8_e8m0fnu with its rounding modes is not supported")


@rule("BitCast")
def _bit_cast(c: Call) -> Any:
    target = element_type(c.attr("to"))
    if target is c.item(0).dtype:
        return c.inputs[0]
    raise c.refuse(f"the bits of {c.item(0).dtype} are not read as {target}; only the same type is")
