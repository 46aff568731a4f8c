"""Cases of matrix products and readers of weights."""

from __future__ import annotations

import numpy as np

from xinheng.core.ir.dtype import bfloat16, float16, float32, int64

from ..case import Tier, case
from ..draw import EVERY, MODERATE
from ..operands import FLOAT, Normal, W, floats, gain, ints, normal, rng, special_columns, special_rows, special_values
from .sizes import BATCHES, HIDDEN, TAILS, TILES, VIEWS

case("matmul", normal(3, 5), normal(5, 7))
case("matmul", normal(4, 320), normal(320, 6), note="long")
case("matmul", normal(65, 96), normal(96, 33), note="wide")
case("matmul", normal(2, 3, 5), normal(2, 5, 4), note="batched")
case("matmul", normal(2, 1, 3, 5), normal(4, 5, 2), note="broadcast")
case("matmul", normal(1, 64), normal(64, 1), note="dot")
case("matmul", normal(0, 5), normal(5, 2), note="no rows")
case("matmul", normal(3, 0), normal(0, 2), note="no terms")
case("matmul", floats([[np.inf, 1.0], [6e4, 6e4]]), floats([[0.0, 1.0], [2.0, 2.0]]), note="edges", special=True)
case("matmul", ints([[1, 2], [3, 4]]), ints([[5], [6]]), note="int32")
case("matmul", ints([[1, 2**40]], int64), ints([[5], [6]], int64), note="int64")
_FACTORS = [ints(rng("factors", side).integers(-99, 100, shape)) for side, shape in (("a", (33, 65)), ("b", (65, 17)))]
case("matmul", *_FACTORS, note="many int32")
for _size in TAILS:
    case("matmul", normal(5, _size), normal(_size, 7))
for _size in TILES:
    case("matmul", normal(_size, 33), normal(33, 5))
    case("matmul", normal(5, 33), normal(33, _size))
for _tokens in BATCHES:
    case("matmul", normal(_tokens, 576), normal(576, 96))
case("matmul", normal(65, 129), normal(129, 67))
case("matmul", normal(97, 321), normal(321, 113), data=EVERY)
case("matmul", normal(3, 4096), normal(4096, 17), data=("normal", "uniform", "outliers"))
case("matmul", normal(101, 64), normal(64, 101), data=("normal", "tiny"))
case("matmul", normal(2, 3, 33, 64), normal(2, 3, 64, 65), note="heads")
case("matmul", normal(9, 1, 64), normal(9, 64, 129), note="one query")
case("matmul", normal(101, 4096), normal(4096, 101), data=MODERATE, tier=Tier.FULL)
case("matmul", normal(8, 2048), normal(2048, 5632), tier=Tier.FULL)
for _layout in VIEWS:
    case("matmul", normal(17, 65), normal(65, 33), layout=_layout)
    case("matmul", normal(1, 65), normal(65, 33), layout=_layout)
    case("matmul", normal(3, 17, 33), normal(3, 33, 9), layout=_layout)
case("matmul", special_rows(9), gain(9, 5, shift=0.0), label="specials-left", special=True)
case("matmul", gain(5, 9, shift=0.0), special_columns(9), label="specials-right", special=True)
case("matmul", special_rows(9), special_columns(9), label="specials-both", special=True)


def _weight(rows: int, columns: int, *schemes: str) -> W:
    """A weight whose rows are shared out among the schemes."""
    values = Normal((rows, columns), ("weight", rows, columns, schemes))
    share = rows // len(schemes)
    counts = [share] * (len(schemes) - 1) + [rows - share * (len(schemes) - 1)]
    return W(values, tuple(zip(schemes, counts, strict=True)))


_DENSE = ("float32", "float16", "bfloat16")
_USUAL = ("q8_0", "q4_0")

for _scheme in (*_DENSE, *_USUAL):
    case("linear", normal(3, 64), _weight(5, 64, _scheme), note=_scheme)
    case("linear", normal(2, 3, 320), _weight(33, 320, _scheme), normal(33), note=f"{_scheme} bias")
    case("dequantize", _weight(6, 64, _scheme), dtype=FLOAT, note=_scheme)
    case("embedding", ints([[5, 0], [2, 2]]), _weight(6, 64, _scheme), dtype=FLOAT, note=_scheme)
    case("dequantize", _weight(37, 768, _scheme), dtype=FLOAT, note=_scheme)
    case("embedding", ints([36, 0, 17, 0, 1]), _weight(37, 768, _scheme), dtype=FLOAT, note=_scheme)
    case(
        "linear",
        normal(97, 320),
        _weight(113, 320, _scheme),
        data=EVERY if _scheme in _DENSE else MODERATE,
        note=_scheme,
    )
    case("linear", normal(3, 4096), _weight(9, 4096, _scheme), data=("normal", "outliers"), note=_scheme)
    for _layout in VIEWS:
        case("linear", normal(5, 96), _weight(9, 96, _scheme), normal(9), layout=_layout, note=f"{_scheme} {_layout}")
        case("linear", normal(1, 96), _weight(9, 96, _scheme), layout=_layout, note=f"{_scheme} {_layout}")
for _scheme in _DENSE:
    for _size in TAILS:
        case("linear", normal(5, _size), _weight(7, _size, _scheme), note=_scheme)
    for _tokens in BATCHES:
        case("linear", normal(_tokens, 576), _weight(67, 576, _scheme), note=_scheme)
for _size in TILES:
    case("linear", normal(3, 33), _weight(_size, 33, "bfloat16"), normal(_size), note="columns")
    case("linear", normal(_size, 64), _weight(9, 64, "q8_0"), note="rows")
case("linear", normal(3, 64), _weight(9, 64, "q8_0", "float16"), note="parts")
case("linear", normal(3, 768), _weight(67, 768, "q4_1", "q8_0", "bfloat16"), note="three parts")
case("linear", normal(5, 768), _weight(67, 768, "q4_k", "q6_k", "q8_0"), normal(67), note="three packed parts")
case("linear", normal(1, 768), _weight(35, 768, "q5_0", "q4_1"), normal(35), note="two packed parts")
case("linear", normal(64), _weight(5, 64, "float32"), normal(5), note="vector")
case("linear", normal(0, 64), _weight(5, 64, "q4_0"), note="empty")
case("linear", normal(4, 32, shift=3.0), _weight(1, 32, "float32"), normal(1), note="one row")
for _size in HIDDEN:
    case("linear", normal(2, _size), _weight(64, _size, "bfloat16"), note="hidden")
    case("linear", normal(7, _size), _weight(_size, _size, "bfloat16"), note="hidden", tier=Tier.FULL)
for _scheme in ("float32", "bfloat16", "q8_0"):
    case("linear", special_rows(64), _weight(5, 64, _scheme), label=f"specials_{_scheme}", special=True)
case("dequantize", _weight(9, 64, "q8_0", "float16"), dtype=FLOAT, note="parts")
case(
    "dequantize",
    W(rng("extremes").normal(0, 3e4, (7, 64)), (("float32", 7),)),
    dtype=FLOAT,
    note="overflow",
    special=True,
)
case("dequantize", W(rng("fine").normal(0, 1e-6, (7, 64)), (("float32", 7),)), dtype=FLOAT, note="fine")
case("embedding", ints([8, 0, 4, 3], int64), _weight(9, 64, "q8_0", "float32"), dtype=FLOAT, note="parts")
case("embedding", ints(3), _weight(4, 32, "float32"), dtype=FLOAT, note="scalar")
case("embedding", ints(np.zeros((0, 2))), _weight(4, 32, "q4_0"), dtype=FLOAT, note="empty")
for _size in (1, 31, 33, 127, 129):
    case("embedding", ints(rng("tokens", _size).integers(0, 131, _size)), _weight(131, _size, "bfloat16"), dtype=FLOAT)
case("embedding", ints(rng("tokens").integers(0, 300, 33)), _weight(300, 576, "q8_0"), dtype=FLOAT, note="vocabulary")
for _layout in VIEWS:
    case("embedding", ints(rng("tokens").integers(0, 9, (5, 7))), _weight(9, 64, "q8_0"), dtype=FLOAT, layout=_layout)
for _scheme, _kind in (("float32", float32), ("float16", float16), ("bfloat16", bfloat16)):
    _numbers = W(np.stack([special_values(_kind), special_values(_kind)[::-1]]), ((_scheme, 2),))
    case("dequantize", _numbers, dtype=FLOAT, label=f"specials_{_scheme}", special=True)
    case("embedding", ints([1, 0, 1]), _numbers, dtype=FLOAT, label=f"specials_{_scheme}", special=True)
