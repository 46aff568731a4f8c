"""Cases of products along an axis."""

from __future__ import annotations

from xinheng.core.ir.dtype import int64

from .case import case, floats, ints, normal

for _axis in (0, 1, -1):
    case("prod", normal(3, 4, 2), axis=_axis)
    case("cumprod", normal(3, 4, 2), axis=_axis)
case("prod", normal(5, 3, scale=0.5, shift=1.0), axis=0, keepdims=True)
case("prod", normal(3, 0), axis=1, note="empty axis")
case("prod", normal(0, 3), axis=1, note="empty")
case("prod", floats([2.0, 0.0, -3.0]), axis=0, note="zero", special=True)
case("prod", ints([[1, 2, 3], [4, -5, 6]]), axis=1, note="int32")
case("prod", ints([2**20, 2**20], int64), axis=0, note="int64")
case("cumprod", normal(0, 3), axis=0, note="empty")
case("cumprod", ints([[1, 2, 3], [4, -5, 6]]), axis=1, note="int32")
