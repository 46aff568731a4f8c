"""Cases of quantised tensors: codes, scales, and products of codes."""

from __future__ import annotations

import numpy as np

from xinheng.core.ir.dtype import float8_e4m3fn, float8_e5m2, float32, int8, int16, uint8

from .case import FLOAT, T, W, case, floats, ints, normal, rng


def _scales(*values: float) -> T:
    return T(np.array(values), float32)


_ONE = T(np.array(0.0371), float32)
_HALVES = floats([0.5, 1.5, 2.5, -0.5, -1.5, 200.0, -200.0, 0.0])
for _kind in (int8, uint8, int16):
    case("quantize", normal(3, 7), _ONE, dtype=_kind, note=_kind.name)
    case("quantize", normal(3, 2), _scales(0.1, 0.03), dtype=_kind, axis=1, note=f"{_kind.name} axis")
    case("quantize", normal(2, 3), _scales(0.1, 0.03), ints([3, -5]), dtype=_kind, axis=-2, note=f"{_kind.name} zero")
    case("quantize", _HALVES, _scales(1.0), dtype=_kind, note=f"{_kind.name} halves", special=True)
case("quantize", normal(0, 2), _ONE, dtype=int8, note="empty")
case("quantize", normal(3, 7), _scales(0.02), ints([7]), dtype=uint8, note="one zero point")
for _kind in (float8_e4m3fn, float8_e5m2):
    case("quantize", normal(3, 7), _ONE, dtype=_kind, note=_kind.name)
    case("quantize", normal(3, 2, scale=9.0), _scales(0.1, 0.01), dtype=_kind, axis=1, note=f"{_kind.name} axis")
    case("dynamic_quant", normal(3, 7), dtype=_kind, note=_kind.name)

_BYTES = T(rng("bytes").integers(-127, 128, (3, 5)), int8)
case("dequantize_linear", _BYTES, _ONE, dtype=FLOAT)
case("dequantize_linear", _BYTES, _scales(0.1, 0.2, 0.3), dtype=FLOAT, axis=0, note="axis")
case("dequantize_linear", _BYTES, _scales(0.1, 0.2, 0.3), ints([1, 0, -128]), dtype=FLOAT, axis=-2, note="zero")
case("dequantize_linear", T(_BYTES.data + 127, uint8), _ONE, ints(200), dtype=FLOAT, note="uint8")
case("dequantize_linear", T(_BYTES.data / 16, float8_e4m3fn), _scales(0.3), dtype=FLOAT, note="float8")
case("dequantize_linear", T(np.zeros((0, 5)), int8), _ONE, dtype=FLOAT, note="empty")

case("dynamic_quant", normal(3, 17))
case("dynamic_quant", normal(2, 3, 5, scale=1e-3), note="small")
case("dynamic_quant", normal(3, 5), dtype=int16, note="int16")
case("dynamic_quant", floats([[0.0, 0.0, 0.0], [1.0, -127.0, 0.5]]), note="zero row")
case("dynamic_quant", normal(0, 4), note="empty")
case("dynamic_quant", normal(7), note="vector")
case("add_rms_norm_quant", normal(3, 32), normal(3, 32), normal(32, shift=1.0), eps=1e-6)
case("add_rms_norm_quant", normal(2, 2, 9), normal(2, 2, 9), normal(9), eps=1e-5, dtype=float8_e4m3fn, note="float8")
case("add_rms_norm_quant", normal(0, 9), normal(0, 9), normal(9), eps=1e-5, note="empty")
case("silu_and_mul_quant", normal(3, 17, scale=3), normal(3, 17))
case("silu_and_mul_quant", normal(3, 17, scale=3), normal(3, 17), dtype=float8_e4m3fn, note="float8")
case("silu_and_mul_quant", normal(0, 4), normal(0, 4), note="empty")


def _codes(*shape: int, dtype: object = int8) -> T:
    low, high = (0, 256) if dtype is uint8 else (-128, 128)
    return T(rng("codes", shape).integers(low, high, shape), uint8 if dtype is uint8 else int8)


case("int_matmul", _codes(3, 5), _codes(5, 7))
case("int_matmul", _codes(4, 3000), _codes(3000, 2), note="long")
case("int_matmul", T(np.full((1, 1500), -128), int8), T(np.full((1500, 1), -128), int8), note="largest")
case("int_matmul", _codes(2, 3, 5, dtype=uint8), _codes(5, 2), note="uint8 times int8")
case("int_matmul", T(np.full((2, 600), 255), uint8), T(np.full((600, 1), 255), uint8), note="uint8")
case("int_matmul", _codes(0, 5), _codes(5, 7), note="no rows")
case("int_matmul", _codes(2, 0), _codes(0, 3), note="no terms")


def _factors(*shape: int) -> T:
    return T(rng("factors", shape).uniform(0.01, 0.1, shape), float32)


case("quant_matmul", _codes(3, 64), _codes(5, 64), _factors(3, 1), _factors(5), dtype=FLOAT)
case("quant_matmul", _codes(3, 300), _codes(5, 300), _factors(3, 1), _factors(5), normal(5), dtype=FLOAT, note="bias")
case("quant_matmul", _codes(0, 64), _codes(5, 64), _factors(0, 1), _factors(5), dtype=FLOAT, note="empty")
_EIGHTHS = [T(rng("eighths", n).normal(0, 1, (n, 64)), float8_e4m3fn) for n in (3, 5)]
case("quant_matmul", *_EIGHTHS, _factors(3, 1), _factors(5), normal(5), dtype=FLOAT, note="float8")


def _coded(rows: int, columns: int, scheme: str) -> W:
    return W(rng("coded", rows, columns, scheme).normal(0, 1, (rows, columns)), ((scheme, rows),))


for _scheme in ("int4_g32", "int8_g64_bf16", "int8_row", "float8_e4m3_row", "float8_e4m3_b128"):
    case("linear", normal(3, 128), _coded(5, 128, _scheme), normal(5), note=_scheme)
    case("embedding", ints([4, 0]), _coded(5, 128, _scheme), dtype=FLOAT, note=_scheme)
