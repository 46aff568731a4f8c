"""Cases of quantised tensors: codes, scales, products of codes, and weights in every scheme."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import DType, float8_e4m3fn, float8_e5m2, float32, int8, int16, uint8
from xinheng.core.schemes import SCHEMES

from ..case import Tier, case
from ..draw import EVERY, MODERATE
from ..operands import FLOAT, Coded, Special, T, W, floats, ints, normal, rng, special_rows, specials
from .sizes import BATCHES, TAILS, VIEWS


def _scales(*values: float) -> T:
    return T(np.array(values), float32)


def _many(size: int) -> T:
    return T(rng("scales", size).uniform(0.003, 0.1, size), float32)


_ONE = T(np.array(0.0371), float32)
_HALVES = floats([0.5, 1.5, 2.5, -0.5, -1.5, 200.0, -200.0, 126.5, 127.5, -127.5, -128.5, 0.0])
_SPANS = ("normal", "uniform", "tiny", "outliers", "alternating")
for _kind in (int8, uint8, int16):
    case("quantize", normal(3, 7), _ONE, dtype=_kind, label=_kind.name)
    case("quantize", normal(7, 321), _many(321), dtype=_kind, axis=1, label=f"{_kind.name}_axis", data=_SPANS)
    case(
        "quantize",
        normal(5, 33),
        _many(5),
        ints([3, -5, 127, -128, 0]),
        dtype=_kind,
        axis=-2,
        label=f"{_kind.name}_zero",
    )
    case("quantize", _HALVES, _scales(1.0), dtype=_kind, label=f"{_kind.name}_halves", special=True)
    case("quantize", _HALVES, _scales(2.0), ints([1]), dtype=_kind, label=f"{_kind.name}_quarters", special=True)
case("quantize", normal(7, 33), _scales(1e-4), ints([-77]), dtype=int16, label="int16_large-codes-zero")
case("quantize", normal(0, 2), _ONE, dtype=int8, label="empty")
case("quantize", normal(3, 7), _scales(0.02), ints([7]), dtype=uint8, label="one-zero-point")
case("quantize", normal(7, 4096), _scales(0.0371), dtype=int8, label="T7xD4096", data=_SPANS)
for _layout in VIEWS:
    case("quantize", normal(5, 33), _many(33), dtype=int8, axis=1, layout=_layout, label=_layout.value)
for _kind in (float8_e4m3fn, float8_e5m2):
    case("quantize", normal(3, 7), _ONE, dtype=_kind, label=_kind.name)
    case(
        "quantize", normal(7, 129, scale=9.0), _many(129), dtype=_kind, axis=1, label=f"{_kind.name}_axis", data=_SPANS
    )
    _numbers = floats(
        np.array([1.0, 1.0625, 1.125, 17.0, 440.0, 448.0, 463.0, 465.0, 1e-3, 2**-9, 2**-10, 2**-11, 0.0])
    )
    case("quantize", _numbers, _scales(1.0), dtype=_kind, label=f"{_kind.name}_ties", special=True)


def _codes(*shape: int, dtype: DType = int8) -> T:
    """Codes of all values, -128 among them."""
    low, high = (0, 256) if dtype is uint8 else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1))
    return T(rng("codes", shape, dtype).integers(low, high, shape), dtype)


for _kind in (int8, uint8, int16):
    _bytes = _codes(5, 129, dtype=_kind)
    case("dequantize_linear", _bytes, _ONE, dtype=FLOAT, label=_kind.name)
    case("dequantize_linear", _bytes, _many(129), dtype=FLOAT, axis=1, label=f"{_kind.name}_columns")
    case("dequantize_linear", _bytes, _many(5), dtype=FLOAT, axis=0, label=f"{_kind.name}_rows")
    _zeros = ints([1, 0, -128, 127, 200])
    case("dequantize_linear", _bytes, _many(5), _zeros, dtype=FLOAT, axis=-2, label=f"{_kind.name}_zero")
    case("dequantize_linear", _bytes, _ONE, ints(200), dtype=FLOAT, label=f"{_kind.name}_one-zero")
_EIGHTHS = rng("eighths").normal(0, 30, (5, 65))
for _kind in (float8_e4m3fn, float8_e5m2):
    case("dequantize_linear", T(_EIGHTHS, _kind), _scales(0.3), dtype=FLOAT, label=_kind.name)
    case("dequantize_linear", T(_EIGHTHS, _kind), _many(65), dtype=FLOAT, axis=1, label=f"{_kind.name}_columns")
case("dequantize_linear", T(np.zeros((0, 5)), int8), _ONE, dtype=FLOAT, label="empty")

_ZERO_ROWS = floats([[0.0, 0.0, 0.0, 0.0], [1.0, -127.0, 5.0, -2.0], [0.0, 0.0, 0.0, 1e-3], [-254.0, 4.0, 8.0, -2.0]])
_TIES = floats([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5], [-254.0, 1.0, 3.0, 5.0, -1.0, -3.0, -5.0, 253.0]])
_ENDS = Special(lambda s: special_rows(33).layout(s[np.isfinite(s)]))
"""Rows with all special values that have codes."""
for _kind in (int8, int16, float8_e4m3fn, float8_e5m2):
    for _size in TAILS if _kind is int8 else (1, 33, 129):
        case("dynamic_quant", normal(3, _size), dtype=_kind, label=f"{_kind.name}_T3xD{_size}")
    case("dynamic_quant", normal(7, 320), dtype=_kind, label=f"{_kind.name}_T7xD320", data=EVERY)
    case("dynamic_quant", _ZERO_ROWS, dtype=_kind, label=f"{_kind.name}_zero-row")
    case("dynamic_quant", _TIES, dtype=_kind, label=f"{_kind.name}_ties", special=True)
    _extreme = special_rows(33) if _kind is float8_e5m2 else _ENDS
    case("dynamic_quant", _extreme, dtype=_kind, label=f"{_kind.name}_specials", special=True)
for _tokens in BATCHES:
    case("dynamic_quant", normal(_tokens, 576), label=f"T{_tokens}xD576")
case("dynamic_quant", normal(7, 4096), label="T7xD4096", data=MODERATE)
case("dynamic_quant", normal(2, 3, 5, scale=1e-3), label="small")
case("dynamic_quant", normal(0, 4), label="empty")
case("dynamic_quant", normal(7), label="vector")
for _layout in VIEWS:
    case("dynamic_quant", normal(5, 33), layout=_layout, label=_layout.value)

for _depth in (1, 5, 31, 33, 64, 129, 1031, 3000):
    case("int_matmul", _codes(4, _depth), _codes(_depth, 7), label=f"M4xN7xK{_depth}")
    case("int_matmul", _codes(4, _depth, dtype=uint8), _codes(_depth, 7), label=f"M4xN7xK{_depth}_uint8-int8")
for _rows, _columns in ((1, 33), (17, 65), (33, 16), (65, 129)):
    case("int_matmul", _codes(_rows, 64), _codes(64, _columns), label=f"M{_rows}xN{_columns}xK64")
case("int_matmul", T(np.full((1, 1500), -128), int8), T(np.full((1500, 1), -128), int8), label="largest")
case("int_matmul", T(np.full((2, 600), 255), uint8), T(np.full((600, 1), 255), uint8), label="uint8-largest")
case("int_matmul", T(np.full((2, 70000), 255), uint8), T(np.full((70000, 1), 255), uint8), label="wraps")
case("int_matmul", _codes(2, 3, 5, dtype=uint8), _codes(5, 2), label="broadcast")
case("int_matmul", _codes(0, 5), _codes(5, 7), label="no-rows")
case("int_matmul", _codes(2, 0), _codes(0, 3), label="no-terms")
case("int_matmul", _codes(129, 4096), _codes(4096, 65), label="M129xN65xK4096", tier=Tier.FULL)
for _layout in VIEWS:
    case("int_matmul", _codes(5, 33), _codes(33, 7), layout=_layout, label=_layout.value)


def _factors(*shape: int) -> T:
    return T(rng("factors", shape).uniform(0.01, 0.1, shape), float32)


def _products(rows: int, columns: int, depth: int, note: str = "", bias: bool = False, **how: Any) -> None:
    label = f"M{rows}xN{columns}xK{depth}" + (f"_{note}" if note else "")
    added = [normal(columns)] if bias else []
    scales = _factors(rows, 1), _factors(columns), *added
    case("quant_matmul", _codes(rows, depth), _codes(columns, depth), *scales, dtype=FLOAT, label=label, **how)
    eighths = [T(rng("eighths", n, depth).normal(0, 1, (n, depth)), float8_e4m3fn) for n in (rows, columns)]
    case("quant_matmul", *eighths, *scales, dtype=FLOAT, label=f"{label}_float8", **how)


for _depth in (1, 31, 33, 64, 129, 320, 1031, 4096):
    _products(3, 5, _depth)
for _tokens in BATCHES:
    _products(_tokens, 33, 96, "bias", True)
_products(17, 65, 64)
_products(0, 5, 64)
_products(33, 129, 2048, tier=Tier.FULL)
_LOUD = _codes(5, 33), _codes(21, 33), _factors(5, 1), _factors(21), specials()
case("quant_matmul", *_LOUD, dtype=FLOAT, label="special-bias", special=True)
for _layout in VIEWS:
    _coded = _codes(5, 33), _codes(7, 33), _factors(5, 1), _factors(7)
    case("quant_matmul", *_coded, dtype=FLOAT, layout=_layout, label=_layout.value)


def _whole(scheme: str) -> W:
    """Small counting numbers, which every dense scheme can hold."""
    return W(np.arange(99.0).reshape(3, 33) % 7 + 1, ((scheme, 3),))


for _scheme in SCHEMES.values():
    _name, _unit = _scheme.name, max(_scheme.block, 32)
    if _scheme.dense is not None:
        case("dequantize", _whole(_name), dtype=FLOAT, label=_name)
        case("embedding", ints([2, 0, 2]), _whole(_name), dtype=FLOAT, label=_name)
        continue
    case("dequantize", Coded((4, 3 * _unit), _name), dtype=FLOAT, label=_name)
    case("embedding", ints([[6, 0, 4], [4, 1, 6]]), Coded((7, 2 * _unit), _name), dtype=FLOAT, label=_name)
    for _rows, _groups, _tokens in ((5, 3, 3), (33, 5, 1)):
        _columns = _groups * _unit
        _operands = normal(_tokens, _columns), Coded((_rows, _columns), _name)
        _bias = [normal(_rows)] if _tokens == 1 else []
        case("linear", *_operands, *_bias, label=f"{_name}_T{_tokens}xN{_rows}xK{_columns}")
    # kernels of tiles: rows around the sixteen of a tile, tokens around those kept in registers, many blocks
    for _tokens, _rows in ((1, 49), (2, 16), (6, 49), (7, 31), (8, 17), (33, 49)):
        _operands = normal(_tokens, 768), Coded((_rows, 768), _name)
        case("linear", *_operands, label=f"{_name}_T{_tokens}xN{_rows}xK768")
    case(
        "embedding", ints([48, 0, 15, 16, 47, 31, 32]), Coded((49, 768), _name), dtype=FLOAT, label=f"{_name}_R49xK768"
    )
for _name in ("q8_0", "q4_0", "q4_k", "q6_k", "int4_g128", "int8_g64_bf16", "float8_e4m3_b128", "mxfp4"):
    _operands = normal(4, 1024), Coded((17, 1024), _name)
    case("linear", *_operands, label=f"{_name}_T4xN17xK1024", data=MODERATE)
    case("linear", normal(2, 4096), Coded((9, 4096), _name), label=f"{_name}_T2xN9xK4096")
    for _tokens in (4, 7, 17):
        case("linear", normal(_tokens, 256), Coded((33, 256), _name), label=f"{_name}_T{_tokens}xN33xK256")
for _name in ("int8_row", "float8_e4m3_row"):
    for _columns in (1, 33, 65, 129, 320, 321, 4096):
        case("linear", normal(3, _columns), Coded((5, _columns), _name), label=f"{_name}_T3xN5xK{_columns}")
