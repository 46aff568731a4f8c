"""Cases of matrix products and readers of weights."""

from __future__ import annotations

import numpy as np

from xinheng.core.ir.dtype import int64

from .case import FLOAT, W, case, floats, ints, normal, rng

case("matmul", normal(3, 5), normal(5, 7))
case("matmul", normal(4, 320), normal(320, 6), note="long")
case("matmul", normal(65, 96), normal(96, 33), note="wide")
case("matmul", normal(2, 3, 5), normal(2, 5, 4), note="batched")
case("matmul", normal(2, 1, 3, 5), normal(4, 5, 2), note="broadcast")
case("matmul", normal(1, 64), normal(64, 1), note="dot")
case("matmul", normal(0, 5), normal(5, 2), note="no rows")
case("matmul", normal(3, 0), normal(0, 2), note="no terms")
case("matmul", floats([[np.inf, 1.0], [6e4, 6e4]]), floats([[0.0, 1.0], [2.0, 2.0]]), note="special", special=True)
case("matmul", ints([[1, 2], [3, 4]]), ints([[5], [6]]), note="int32")
case("matmul", ints([[1, 2**40]], int64), ints([[5], [6]], int64), note="int64")


def _weight(rows: int, columns: int, *schemes: str) -> W:
    """A weight whose rows are shared out among the schemes."""
    values = rng("weight", rows, columns, schemes).normal(0, 1, (rows, columns))
    share = rows // len(schemes)
    counts = [share] * (len(schemes) - 1) + [rows - share * (len(schemes) - 1)]
    return W(values, tuple(zip(schemes, counts, strict=True)))


for _scheme in ("float32", "float16", "bfloat16", "q8_0", "q4_0"):
    case("linear", normal(3, 64), _weight(5, 64, _scheme), note=_scheme)
    case("linear", normal(2, 3, 320), _weight(33, 320, _scheme), normal(33), note=f"{_scheme} bias")
    case("dequantize", _weight(6, 64, _scheme), dtype=FLOAT, note=_scheme)
    case("embedding", ints([[5, 0], [2, 2]]), _weight(6, 64, _scheme), dtype=FLOAT, note=_scheme)
case("linear", normal(3, 64), _weight(9, 64, "q8_0", "float16"), note="parts")
case("linear", normal(64), _weight(5, 64, "float32"), normal(5), note="vector")
case("linear", normal(0, 64), _weight(5, 64, "q4_0"), note="empty")
case("linear", normal(4, 32, shift=3.0), _weight(1, 32, "float32"), normal(1), note="one row")
case("dequantize", _weight(9, 64, "q8_0", "float16"), dtype=FLOAT, note="parts")
case("embedding", ints([8, 0, 4, 3], int64), _weight(9, 64, "q8_0", "float32"), dtype=FLOAT, note="parts")
case("embedding", ints(3), _weight(4, 32, "float32"), dtype=FLOAT, note="scalar")
case("embedding", ints(np.zeros((0, 2))), _weight(4, 32, "q4_0"), dtype=FLOAT, note="empty")
