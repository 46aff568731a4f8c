"""Cases of division with a whole quotient."""

from __future__ import annotations

import numpy as np

from xinheng.core.ir.dtype import int8, int64, uint8

from ..case import case
from ..draw import MODERATE
from ..operands import floats, ints, normal, positive, rng
from .sizes import VECTORS, VIEWS, binary

case("fmod", normal(3, 5, scale=8), positive(3, 5))
case("fmod", normal(4, 1, scale=8), positive(3), note="broadcast")
case("fmod", floats([-7.5, 7.5, -7.5, 7.5, 6.0, 0.25]), floats([2.0, -2.0, -2.0, 2.0, 3.0, 4.0]), note="signs")
case("fmod", floats([1.0, np.inf, 5.0, np.nan]), floats([0.0, 2.0, np.inf, 1.0]), note="edges", special=True)
case("fmod", normal(0, 3), positive(3), note="empty")
case("fmod", normal(7, 1536, scale=8), positive(7, 1536), data=MODERATE, note="near")
binary("fmod")
_TOP = rng("quotients").integers(-(2**31) + 1, 2**31, (7, 1031))
_BOTTOM = (rng("divisors").integers(1, 2**15, (7, 1031)) >> rng("divisor shifts").integers(0, 14, (7, 1031))) | 1
_SIGNS = np.where(rng("divisor signs").random((7, 1031)) < 0.5, -1, 1)
for _name in ("fmod", "trunc_div"):
    case(_name, ints([[7, -7, 7, -7, 0, 6]]), ints([3, 3, -3, -3, 5, 2]), note="int32")
    case(_name, ints([2**40 + 7, -(2**40) - 7], int64), ints([10], int64), note="int64")
    case(_name, ints([255, 7, 0], uint8), ints([2, 8, 3], uint8), note="uint8")
    case(_name, ints([-128, 127], int8), ints([7, -7], int8), note="int8")
    case(_name, ints(_TOP), ints(_BOTTOM * _SIGNS), note="many int32")
    case(_name, ints(_TOP * 2**20 + 1, int64), ints(_BOTTOM * _SIGNS, int64), note="many int64")
    case(_name, ints(_TOP & 255, uint8), ints(_BOTTOM & 127 | 1, uint8), note="many uint8")
    for _size in VECTORS:
        case(_name, ints(_TOP[:3, :_size]), ints(_BOTTOM[0, :_size]))
    for _layout in VIEWS:
        case(_name, ints(_TOP[:3, :65]), ints(_BOTTOM[0, :65]), layout=_layout)
