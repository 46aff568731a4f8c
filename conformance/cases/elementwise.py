"""Cases of elementwise ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import DTYPES, DType, bfloat16, bool_, float16, float32, int16, int64, uint8

from ..case import case
from ..draw import EVERY, MODERATE
from ..operands import Patterns, bools, floats, ints, magnitude, normal, positive, rng, special_pair, specials
from .sizes import PATTERNS, SHORT, VECTORS, VIEWS, binary, unary

_EDGES = floats([0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-3, -0.25, 88.0, -88.0, -104.0, 12.0, -12.0, 6e-8])
_RANGE = floats([65504.0, -65504.0, 3e38, -3e38, 1e-38, 1e-45, 256.5, 1e5])
_FINITE = (*MODERATE, "constant", "alternating")
"""Data whose exponentials mostly do not overflow, if they are halved."""

for _name in ("neg", "abs", "exp", "sin", "cos", "tanh", "erf", "sigmoid", "square", "silu", "gelu"):
    case(_name, normal(3, 5, scale=3))
    case(_name, normal(17, 33, scale=1))
    case(_name, normal(), note="scalar")
    case(_name, normal(0, 4), note="empty")
    case(_name, _EDGES, note="edges", special=True)
for _name in ("log", "sqrt", "rsqrt"):
    case(_name, positive(3, 5))
    case(_name, positive(257))
    case(_name, positive(2, 0), note="empty")
    case(_name, _EDGES, note="edges", special=True)
    unary(_name, magnitude)
for _name in ("square", "sin", "cos", "tanh", "erf", "sigmoid", "silu", "gelu"):
    unary(_name)
for _name in ("neg", "abs"):
    unary(_name, data=MODERATE)
unary("exp", scale=0.5, data=_FINITE)
unary("gelu", approximate="tanh")
for _name in ("neg", "abs", "square", "exp", "sqrt"):
    case(_name, _RANGE, note="range", special=True)
for _name in ("sin", "cos"):  # angles of far positions
    case(_name, normal(5, 2111, scale=2e5), data=("uniform",), kinds=(float32, bfloat16), note="far")
    case(_name, normal(5, 2111, scale=800), data=("uniform",), kinds=(float16,), note="far half")
case("gelu", normal(4, 9, scale=3), approximate="tanh")
case("gelu", _EDGES, note="edges tanh", special=True, approximate="tanh")
for _name in ("neg", "abs", "square"):
    case(_name, ints([[0, 5, -7], [-1, 100, 3]]), note="int32")
    case(_name, ints([0, -(2**31), 2**31 + 5], int64), note="int64")
    case(_name, ints(rng(_name).integers(-180, 180, (7, 1031))), note="many int32")

for _name in ("add", "sub", "mul", "div", "maximum", "minimum"):
    _other = positive if _name == "div" else normal
    case(_name, normal(3, 5), _other(3, 5))
    case(_name, normal(31, 17), _other(17))
    case(_name, normal(2, 1, 4), _other(3, 1), note="broadcast")
    case(_name, normal(), _other(2, 3), note="scalar")
    case(_name, normal(0, 4), _other(1, 4), note="empty")
    case(_name, normal(3, 5), 1.7, note="number")
    case(_name, -0.3, _other(3, 5), note="number first")
    case(_name, normal(7, 1031), -0.1, note="number")
    _left, _right = np.meshgrid(
        [0.0, 1.0, -2.0, np.inf, -np.inf, np.nan, 65504.0, 3e38, 1e-7, 1e-40], [0.0, 3.0, -np.inf, 0.1]
    )
    case(_name, floats(_left), floats(_right), note="edges", special=True)
    if _name != "div":
        case(_name, ints([[7, -7, 0]]), ints([[3], [-2]]), note="int32")
        case(_name, ints([2**40 + 1, -5], int64), ints([3, 4], int64), note="int64")
        case(_name, ints([1, 2, 250, 3], uint8), ints([1, 2, 9, 5], uint8), note="uint8")
        case(_name, ints([[7, -7, 0]]), 2, note="int number")
        _many = [ints(rng(_name, side).integers(-30000, 30000, (7, 1031))) for side in "ab"]
        case(_name, *_many, note="many int32")
    binary(_name, data=MODERATE if _name in ("maximum", "minimum") else EVERY)

_A = floats([[1.0, 2.0, 3.0, np.nan, np.inf, -0.0], [0.5, 2.0, -3.0, 1.0, -np.inf, 0.0]])
_B = floats([1.0, 3.0, 3.0, np.nan, np.inf, 0.0])
_CLOSE = [floats(rng("close", side).integers(-5, 6, (7, 1536)) / 4) for side in "ab"]
for _name in ("eq", "lt", "le"):
    case(_name, _A, _B, note="edges", special=True)
    case(_name, normal(3, 5), normal(3, 5))
    case(_name, floats([0.25, 0.5, 0.5625, 0.75]), 0.5, note="number")
    case(_name, 0.5, floats([0.25, 0.5, 0.5625, 0.75]), note="number first")
    case(_name, normal(0, 2), normal(2), note="empty")
    case(_name, *_CLOSE, note="often equal")
    case(_name, ints([[1, 2, 3]]), ints([[2], [3]]), note="int32")
    case(_name, ints([1, 2, 3], int64), 2, note="int number")
    case(_name, ints([1, 200, 255], uint8), ints([200, 200, 0], uint8), note="uint8")
    case(_name, ints([2**53, 2**53 + 1], int64), ints([2**53 + 1], int64), note="large int64")
    case(_name, bools([True, False, True, False]), bools([True, True, False, False]), note="bool")
    binary(_name, data=("normal", "constant"))


def _masks(*shape: int) -> Any:
    return bools(rng("mask", shape).random(shape) < 0.4)


for _name in ("logical_and", "logical_or"):
    case(
        _name, bools([[True, False], [True, True] if _name == "logical_and" else [False, False]]), bools([True, False])
    )
    case(_name, bools([]), bools([]), note="empty")
    for _size in VECTORS:
        case(_name, _masks(_size), _masks(3, _size))
    for _layout in VIEWS:
        case(_name, _masks(17, 65), _masks(65), layout=_layout)
case("logical_not", bools([True, False]))
case("logical_not", bools(True), note="scalar")
for _size in VECTORS:
    case("logical_not", _masks(3, _size))
for _layout in VIEWS:
    case("logical_not", _masks(17, 65), layout=_layout)

case("where", bools([[True], [False], [True]]), normal(3, 5), normal(5))
case("where", bools(True), normal(2), normal(2), note="scalar condition")
case("where", bools([True, False, True]), normal(3), 0.7, note="number")
case("where", bools([True, False, True]), -np.inf, normal(3), note="infinite number")
case("where", bools([True, False]), ints([1, 2]), ints([3, 4]), note="int32")
case("where", bools([True, False]), 7, ints([3, 4], int64), note="int number")
case("where", bools([True, False]), bools([False, False]), bools([True, True]), note="bool")
case("where", bools(np.zeros((0, 1))), normal(3), normal(3), note="empty")
case("where", bools([True, False]), floats([np.nan, 1]), floats([2, np.inf]), note="edges", special=True)
for _size in VECTORS:
    case("where", _masks(5, _size), normal(_size), normal(5, 1))
case("where", _masks(7, 1536), normal(7, 1536), normal(7, 1536), data=MODERATE)
case("where", _masks(3, 129, 129), normal(3, 129, 129), -np.inf, note="mask")
for _layout in VIEWS:
    case("where", _masks(17, 65), normal(17, 65), normal(65), layout=_layout)
case("where", _masks(441), special_pair(0), special_pair(1), label="specials", special=True)
case("where", _masks(PATTERNS), Patterns(PATTERNS), Patterns(PATTERNS), label="patterns", special=True)

_TRAPS = [1 + 2.0**-n + 2.0 ** -(n + 26) for n in (3, 4, 8, 11, 24)] + [65519.99, 65520.0, 463.9, 464.0, 1e-8, 1e-320]
_ENDS = [np.inf, -1e300, np.nan, -0.0]
_COUNTS = ints([[0, 1, -1], [127, -128, 100]])
_WHOLE = floats([[0.0, 1.5, -1.5], [2.9, 0.5, 100.99]])
_LARGE = rng("large").integers(-(2**31), 2**31, (5, 2111)) >> rng("shifts").integers(0, 31, (5, 2111))


def _cast_to_float(target: DType) -> None:
    name, finite = (
        target.name,
        target.name == "float8_e4m3fn",
    )  # what lies beyond a format without infinity is undefined
    case("cast", normal(3, 5), note=name, dtype=target)
    traps, ends = np.minimum(_TRAPS, 464.0 if finite else np.inf), _ENDS[2:] if finite else _ENDS
    case("cast", floats(traps), note=f"{name}-ties", special=True, dtype=target)
    case("cast", floats(ends), note=f"{name}-edges", special=True, dtype=target)
    case("cast", _COUNTS, note=f"int32 to {name}", dtype=target)
    case("cast", bools([True, False]), note=f"bool to {name}", dtype=target)
    if not finite:
        case("cast", ints([2**24 + 1, 2**25 + 2**17 + 1, -(2**30)]), note=f"large to {name}", dtype=target)
        case("cast", ints(_LARGE), note=f"many int32 to {name}", dtype=target)
        case("cast", ints(_LARGE * 2**20 + 1, int64), note=f"many int64 to {name}", dtype=target)
    case("cast", normal(7, 1536), data=("normal", "tiny") if finite else MODERATE, note=name, dtype=target)
    for size in (31, 129):
        case("cast", normal(size), note=name, dtype=target)
    for layout in VIEWS:
        case("cast", normal(17, 65), note=f"{name} {layout}", layout=layout, dtype=target)
    case("cast", specials(), label=f"specials_{name}", special=True, dtype=target)
    case("cast", Patterns(PATTERNS), label=f"patterns_{name}", special=True, dtype=target)
    case("cast", Patterns(1 << 16), label=f"all_{name}", special=True, **SHORT, dtype=target)


for _kind in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
    _cast_to_float(DTYPES[_kind])
for _kind in ("int64", "int32", "int16", "int8", "uint8", "bool"):
    _values = np.abs(_WHOLE.data) if _kind == "uint8" else _WHOLE.data
    case("cast", floats(_values), note=_kind, dtype=DTYPES[_kind])
    case("cast", _COUNTS if _kind != "uint8" else ints([0, 255]), note=f"int32 to {_kind}", dtype=DTYPES[_kind])
    case("cast", bools([[True, False]]), note=f"bool to {_kind}", dtype=DTYPES[_kind])
    _draw = magnitude if _kind == "uint8" else normal
    case("cast", _draw(7, 1536, scale=25), data=("uniform", "tiny"), note=_kind, dtype=DTYPES[_kind])
    for _layout in VIEWS:
        case("cast", _draw(17, 65, scale=20), note=f"{_kind} {_layout}", layout=_layout, dtype=DTYPES[_kind])
case("cast", normal(0, 3), note="empty", dtype=bool_)
case(
    "cast",
    normal(5, 1031, scale=4e8),
    data=("uniform",),
    kinds=(float32, bfloat16),
    note="wide int32",
    dtype=DTYPES["int32"],
)
case("cast", normal(5, 1031, scale=1e17), data=("uniform",), kinds=(float32, bfloat16), note="wide int64", dtype=int64)
case("cast", ints([-(2**15), 2**15 - 1, 0, -1], int16), note="int16 up", dtype=int64)

for _name in ("reciprocal", "floor", "round", "isfinite"):
    case(_name, normal(3, 5, scale=3))
    case(_name, normal(17, 33))
    case(_name, normal(), note="scalar")
    case(_name, normal(0, 4), note="empty")
    case(_name, _EDGES, note="edges", special=True)
    case(_name, _RANGE, note="range", special=True)
    unary(_name, scale=3.0, data=EVERY if _name == "reciprocal" else MODERATE)
for _name in ("floor", "round"):
    case(_name, floats([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.0, 1023.5, -0.0]), note="halves")
    case(_name, floats(rng("halves").integers(-4000, 4000, (5, 2111)) / 4), note="quarters", kinds=(float32, float16))

case("pow", positive(3, 5), normal(3, 5))
case("pow", positive(7, 4), normal(4), note="broadcast")
case("pow", normal(3, 5), 2.0, note="square")
case("pow", positive(3, 5), 0.5, note="root")
case("pow", 1.5, normal(3, 5), note="number first")
case("pow", normal(0, 5), normal(5), note="empty")
case("pow", floats([0.0, 0.0, -2.0, -2.0, np.nan, np.inf]), floats([0.0, -1.0, 3.0, 0.5, 0.0, -1.0]), special=True)
case("pow", ints([[2, -3, 5]]), ints([[3], [2]]), note="int32")
case("pow", normal(7, 1536), 2.0, data=MODERATE, note="square")
case("pow", normal(7, 1536), 3.0, data=("normal", "uniform", "tiny"), note="cube")
binary("pow", magnitude, normal, ("normal", "uniform", "tiny"))

case("clamp", normal(3, 5, scale=3), low=-1.0, high=2.0)
case("clamp", normal(3, 5), low=0.1, note="low")
case("clamp", normal(3, 5), high=0.1, note="high")
case("clamp", normal(3, 5), low=0.0, note="relu")
case("clamp", normal(3, 5), note="nothing")
case("clamp", normal(0, 5), low=0.0, note="empty")
case("clamp", _EDGES, low=-2.0, high=3.0, note="edges", special=True)
case("clamp", ints([[-7, 0, 7]]), low=-2, high=5, note="int32")
unary("clamp", data=MODERATE, low=-0.3, high=1.7)
case("clamp", normal(7, 1536), data=("normal", "outliers"), high=7.0)

case("bitwise_and", ints([[0, 5, -7], [255, 100, 3]]), ints([3, 15, -1]))
case("bitwise_and", ints([1, 200, 255], uint8), 15, note="number")
case("bitwise_and", ints(np.zeros((0, 3)), int64), ints([1, 2, 3], int64), note="empty")
_BYTES = rng("bytes").integers(0, 256, (7, 1031))
_WORDS = rng("words").integers(-(2**31), 2**31, (7, 1031))
for _name, _data, _dtype in (("int32", _WORDS, DTYPES["int32"]), ("uint8", _BYTES, uint8), ("int64", _WORDS, int64)):
    case("bitwise_and", ints(_data, _dtype), ints(_data[::-1], _dtype), note=f"many {_name}")
    for _layout in VIEWS:
        case(
            "bitwise_and",
            ints(_data[:, :65], _dtype),
            ints(_data[0, :65], _dtype),
            layout=_layout,
            note=f"{_name} {_layout}",
        )
    for _bits in (3, -3, -7):
        case("bitwise_shift", ints(_data, _dtype), bits=_bits, note=f"many {_name} by {_bits}")
for _size in VECTORS:
    case("bitwise_and", ints(_WORDS[:3, :_size]), ints(_WORDS[3, :_size]))
    case("bitwise_shift", ints(_WORDS[:3, :_size]), bits=-4)
for _bits in (4, -4, 0):
    case("bitwise_shift", ints([[0, 5, -7], [255, 100, 3]]), bits=_bits)
    case("bitwise_shift", ints([0, 17, 254], uint8), bits=_bits, note=f"uint8 by {_bits}")
for _layout in VIEWS:
    case("bitwise_shift", ints(_WORDS[:, :65]), bits=-4, layout=_layout)
case("bitwise_shift", ints([2**40, -(2**40)], int64), bits=-20, note="int64")
case("bitwise_shift", ints([2**30, -(2**30)]), bits=1, note="sign")
