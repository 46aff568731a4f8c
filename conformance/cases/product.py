"""Cases of products along an axis."""

from __future__ import annotations

from xinheng.core.ir.dtype import int64

from ..case import case
from ..operands import floats, ints, normal, rng, special_rows
from .sizes import VIEWS

for _axis in (0, 1, -1):
    case("prod", normal(3, 4, 2), axis=_axis)
    case("cumprod", normal(3, 4, 2), axis=_axis)
case("prod", normal(5, 3, scale=0.5, shift=1.0), axis=0, keepdims=True)
case("prod", normal(4, 4), axis=1, note="square")
case("prod", normal(3, 0), axis=1, note="empty axis")
case("prod", normal(0, 3), axis=1, note="empty")
case("prod", floats([2.0, 0.0, -3.0]), axis=0, note="zero", special=True)
case("prod", ints([[1, 2, 3], [4, -5, 6]]), axis=1, note="int32")
case("prod", ints([2**20, 2**20], int64), axis=0, note="int64")
case("cumprod", normal(0, 3), axis=0, note="empty")
case("cumprod", ints([[1, 2, 3], [4, -5, 6]]), axis=1, note="int32")
for _name in ("prod", "cumprod"):
    for _size in (1, 31, 33, 65, 127, 129):
        case(_name, normal(7, _size, scale=0.1, shift=1.0), axis=1)
    case(_name, normal(17, 65, scale=0.1, shift=1.0), axis=0, note="columns")
    case(_name, normal(2, 9, 33, scale=0.1, shift=1.0), axis=1, note="middle")
    case(_name, normal(10007, 5), data=("normal", "uniform", "tiny", "constant"), axis=1)
    case(_name, normal(7, 1536, scale=0.01, shift=1.0), axis=0, data=("normal", "uniform"), note="near one")
    case(_name, ints(rng(_name).integers(-40, 40, (33, 65))), axis=1, note="wrapping int32")
    for _layout in VIEWS:
        case(_name, normal(17, 33, scale=0.1, shift=1.0), axis=1, layout=_layout)
        case(_name, normal(17, 33, scale=0.1, shift=1.0), axis=0, layout=_layout)
    case(_name, special_rows(7), axis=1, label="specials", special=True)
