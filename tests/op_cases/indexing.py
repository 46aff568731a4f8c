"""Cases of ops that write to computed places, and of those whose result is as large as the data say."""

from __future__ import annotations

import numpy as np

from xinheng.core.ir.dtype import int64

from .case import bools, case, floats, ints, normal

for _reduction in ("none", "add", "mul", "max", "min"):
    case("scatter", normal(3, 5), ints([[1, 3], [4, 0]]), normal(2, 2), axis=1, reduction=_reduction)
    case("scatter", ints([[1, 2], [3, 4]]), ints([[1, 0]]), ints([[5, 6]]), axis=0, reduction=_reduction, note="int32")
for _reduction in ("add", "mul", "max", "min"):
    case("scatter", normal(4), ints([2, 2, 0, 2]), normal(4), axis=0, reduction=_reduction, note="repeated")
case("scatter", normal(4, 3), ints([[3, 0, 1], [1, 2, 0]], int64), normal(2, 3), axis=0)
case("scatter", normal(2, 3, 4), ints(np.zeros((2, 1, 4))), normal(2, 1, 4), axis=-2, note="negative axis")
case("scatter", normal(3), ints([]), normal(0), axis=0, note="empty")
case("scatter", bools([True, False, True]), ints([0, 1]), bools([False, True]), axis=0, note="bool")

case("nonzero", floats([[0.0, 1.5, 0.0], [-2.0, 0.0, 3.0]]))
case("nonzero", floats([0.0, np.nan, np.inf]), note="special", special=True)
case("nonzero", ints([[[1], [0]], [[0], [7]]]), note="int32")
case("nonzero", bools([False, True, True]), note="bool")
case("nonzero", floats([0.0, 0.0]), note="none")
