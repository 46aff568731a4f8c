"""Cases of elementwise ops."""

from __future__ import annotations

import numpy as np

from xinheng.core.ir.dtype import DTYPES, bool_, int64, uint8

from .case import bools, case, floats, ints, normal, positive

_SPECIAL = floats([0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-3, -0.25, 88.0, -88.0, -104.0, 12.0, -12.0, 6e-8])
_HUGE = floats([65504.0, -65504.0, 3e38, -3e38, 1e-38, 1e-45, 256.5, 1e5])

for _name in ("neg", "abs", "exp", "sin", "cos", "tanh", "erf", "sigmoid", "square", "silu", "gelu"):
    case(_name, normal(3, 5, scale=3))
    case(_name, normal(17, 33, scale=1))
    case(_name, normal(), note="scalar")
    case(_name, normal(0, 4), note="empty")
    case(_name, _SPECIAL, note="special", special=True)
for _name in ("log", "sqrt", "rsqrt"):
    case(_name, positive(3, 5))
    case(_name, positive(257))
    case(_name, positive(2, 0), note="empty")
    case(_name, _SPECIAL, note="special", special=True)
for _name in ("neg", "abs", "square", "exp", "sqrt"):
    case(_name, _HUGE, note="range", special=True)
case("gelu", normal(4, 9, scale=3), approximate="tanh")
case("gelu", _SPECIAL, note="special", special=True, approximate="tanh")
for _name in ("neg", "abs", "square"):
    case(_name, ints([[0, 5, -7], [-1, 100, 3]]), note="int32")
    case(_name, ints([0, -(2**31), 2**31], int64), note="int64")

for _name in ("add", "sub", "mul", "div", "maximum", "minimum"):
    _other = positive if _name == "div" else normal
    case(_name, normal(3, 5), _other(3, 5))
    case(_name, normal(31, 17), _other(17))
    case(_name, normal(2, 1, 4), _other(3, 1), note="broadcast")
    case(_name, normal(), _other(2, 3), note="scalar")
    case(_name, normal(0, 4), _other(1, 4), note="empty")
    case(_name, normal(3, 5), 1.7, note="number")
    case(_name, -0.3, _other(3, 5), note="number first")
    _left, _right = np.meshgrid(
        [0.0, 1.0, -2.0, np.inf, -np.inf, np.nan, 65504.0, 3e38, 1e-7, 1e-40], [0.0, 3.0, -np.inf, 0.1]
    )
    case(_name, floats(_left), floats(_right), note="special", special=True)
    if _name != "div":
        case(_name, ints([[7, -7, 0]]), ints([[3], [-2]]), note="int32")
        case(_name, ints([2**40, -5], int64), ints([3, 4], int64), note="int64")
        case(_name, ints([1, 2, 250], uint8), ints([1, 2, 5], uint8), note="uint8")
        case(_name, ints([[7, -7, 0]]), 2, note="int number")

_A = floats([[1.0, 2.0, 3.0, np.nan, np.inf, -0.0], [0.5, 2.0, -3.0, 1.0, -np.inf, 0.0]])
_B = floats([1.0, 3.0, 3.0, np.nan, np.inf, 0.0])
for _name in ("eq", "lt", "le"):
    case(_name, _A, _B, note="special", special=True)
    case(_name, normal(3, 5), normal(3, 5))
    case(_name, floats([0.25, 0.5, 0.75]), 0.5, note="number")
    case(_name, 0.5, floats([0.25, 0.5, 0.75]), note="number first")
    case(_name, normal(0, 2), normal(2), note="empty")
    case(_name, ints([[1, 2, 3]]), ints([[2], [3]]), note="int32")
    case(_name, ints([1, 2, 3], int64), 2, note="int number")
    case(_name, ints([1, 200, 255], uint8), ints([200, 200, 0], uint8), note="uint8")
    case(_name, bools([True, False, True]), bools([True, True, False]), note="bool")

case("logical_and", bools([[True, False], [True, True]]), bools([True, False]))
case("logical_or", bools([[True, False], [False, False]]), bools([True, False]))
case("logical_and", bools([]), bools([]), note="empty")
case("logical_or", bools([]), bools([]), note="empty")
case("logical_not", bools([True, False]))
case("logical_not", bools(True), note="scalar")

case("where", bools([[True], [False], [True]]), normal(3, 5), normal(5))
case("where", bools(True), normal(2), normal(2), note="scalar condition")
case("where", bools([True, False, True]), normal(3), 0.7, note="number")
case("where", bools([True, False, True]), -np.inf, normal(3), note="infinite number")
case("where", bools([True, False]), ints([1, 2]), ints([3, 4]), note="int32")
case("where", bools([True, False]), 7, ints([3, 4], int64), note="int number")
case("where", bools([True, False]), bools([False, False]), bools([True, True]), note="bool")
case("where", bools(np.zeros((0, 1))), normal(3), normal(3), note="empty")
case("where", bools([True, False]), floats([np.nan, 1]), floats([2, np.inf]), note="special", special=True)

_TRAPS = [1 + 2.0**-n + 2.0 ** -(n + 26) for n in (3, 4, 8, 11, 24)] + [65519.99, 65520.0, 463.9, 464.0, 1e-8, 1e-320]
_ENDS = [np.inf, -1e300, np.nan, -0.0]
_COUNTS = ints([[0, 1, -1], [127, -128, 100]])
_WHOLE = floats([[0.0, 1.5, -1.5], [2.9, 0.5, 100.99]])
for _kind in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
    case("cast", normal(3, 5), note=_kind, dtype=DTYPES[_kind])
    # What lies beyond a format without infinity is not defined.
    _inside = slice(None) if _kind != "float8_e4m3fn" else slice(2, None)
    _largest = np.inf if _kind != "float8_e4m3fn" else 464.0
    case("cast", floats(np.minimum(_TRAPS, _largest)), note=f"{_kind}-ties", special=True, dtype=DTYPES[_kind])
    case("cast", floats(_ENDS[_inside]), note=f"{_kind}-special", special=True, dtype=DTYPES[_kind])
    case("cast", _COUNTS, note=f"int32 to {_kind}", dtype=DTYPES[_kind])
    if _kind != "float8_e4m3fn":
        case("cast", ints([2**24 + 1, 2**25 + 2**17 + 1, -(2**30)]), note=f"large to {_kind}", dtype=DTYPES[_kind])
    case("cast", bools([True, False]), note=f"bool to {_kind}", dtype=DTYPES[_kind])
for _kind in ("int64", "int32", "int16", "int8", "uint8", "bool"):
    _values = np.abs(_WHOLE.data) if _kind == "uint8" else _WHOLE.data
    case("cast", floats(_values), note=_kind, dtype=DTYPES[_kind])
    case("cast", _COUNTS if _kind != "uint8" else ints([0, 255]), note=f"int32 to {_kind}", dtype=DTYPES[_kind])
    case("cast", bools([[True, False]]), note=f"bool to {_kind}", dtype=DTYPES[_kind])
case("cast", normal(0, 3), note="empty", dtype=bool_)

for _name in ("reciprocal", "floor", "round", "isfinite"):
    case(_name, normal(3, 5, scale=3))
    case(_name, normal(17, 33))
    case(_name, normal(), note="scalar")
    case(_name, normal(0, 4), note="empty")
    case(_name, _SPECIAL, note="special", special=True)
    case(_name, _HUGE, note="range", special=True)
for _name in ("floor", "round"):
    case(_name, floats([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.0, 1023.5, -0.0]), note="halves")
case("pow", positive(3, 5), normal(3, 5))
case("pow", positive(7, 4), normal(4), note="broadcast")
case("pow", normal(3, 5), 2.0, note="square")
case("pow", positive(3, 5), 0.5, note="root")
case("pow", 1.5, normal(3, 5), note="number first")
case("pow", normal(0, 5), normal(5), note="empty")
case("pow", floats([0.0, 0.0, -2.0, -2.0, np.nan, np.inf]), floats([0.0, -1.0, 3.0, 0.5, 0.0, -1.0]), special=True)
case("pow", ints([[2, -3, 5]]), ints([[3], [2]]), note="int32")
case("clamp", normal(3, 5, scale=3), low=-1.0, high=2.0)
case("clamp", normal(3, 5), low=0.1, note="low")
case("clamp", normal(3, 5), high=0.1, note="high")
case("clamp", normal(3, 5), note="nothing")
case("clamp", normal(0, 5), low=0.0, note="empty")
case("clamp", _SPECIAL, low=-2.0, high=3.0, note="special", special=True)
case("clamp", ints([[-7, 0, 7]]), low=-2, high=5, note="int32")
case("bitwise_and", ints([[0, 5, -7], [255, 100, 3]]), ints([3, 15, -1]))
case("bitwise_and", ints([1, 200, 255], uint8), 15, note="number")
case("bitwise_and", ints(np.zeros((0, 3)), int64), ints([1, 2, 3], int64), note="empty")
for _bits in (4, -4, 0):
    case("bitwise_shift", ints([[0, 5, -7], [255, 100, 3]]), bits=_bits)
    case("bitwise_shift", ints([0, 17, 254], uint8), bits=_bits, note="uint8")
case("bitwise_shift", ints([2**40, -(2**40)], int64), bits=-20, note="int64")
case("bitwise_shift", ints([2**30, -(2**30)]), bits=1, note="sign")
