"""Cases of pools: strides, pads, dilations, one to three axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..case import case
from ..draw import EVERY
from ..operands import Special, floats, ints, normal, special_rows
from .sizes import VIEWS


def _attributes(*kernel: int, stride: int = 1, pads: Any = None, dilation: int = 1) -> dict[str, Any]:
    n = len(kernel)
    return {
        "kernel": kernel,
        "strides": (stride,) * n,
        "pads": pads or (0,) * (2 * n),
        "dilations": (dilation,) * n,
    }


_ROWS = special_rows(7)

for _name in ("max_pool", "average_pool"):
    case(_name, normal(2, 3, 7), **_attributes(3))
    case(_name, normal(1, 2, 8, 6), **_attributes(2, 3, stride=2, pads=(0, 1, 1, 1)))
    case(_name, normal(1, 2, 7, 7), **_attributes(2, 2, dilation=3), note="dilated")
    case(_name, normal(1, 2, 4, 5, 4), **_attributes(2, 2, 2, stride=2, pads=(0, 1, 0, 0, 0, 0)), note="volume")
    case(_name, normal(2, 2, 4), **_attributes(1), note="one")
    case(_name, normal(0, 3, 7), **_attributes(3), note="empty")
    for _size in (31, 33, 65, 129):
        case(_name, normal(2, 3, _size), **_attributes(5, stride=2, pads=(2, 2)), label=f"2x3x{_size}")
    case(_name, normal(1, 5, 33, 65), **_attributes(3, 3, stride=2, pads=(1, 1, 1, 1)), label="1x5x33x65")
    case(_name, normal(1, 3, 65, 67), **_attributes(3, 3), label="1x3x65x67", data=EVERY)
    case(_name, normal(2, 3, 7, 7), **_attributes(7, 7), label="whole")
    for _layout in VIEWS:
        case(_name, normal(2, 3, 9, 11), **_attributes(2, 3), label=_layout.value, layout=_layout)
    case(_name, Special(lambda s: _ROWS.layout(s)[:, None]), **_attributes(3), label="specials", special=True)
case("max_pool", floats([[[1.0, np.nan, 2.0, -np.inf, -np.inf]]]), **_attributes(2), note="edges", special=True)
case("max_pool", ints([[[3, -9, 2, 7]]]), **_attributes(2, pads=(1, 1)), note="int32")
case("average_pool", normal(1, 2, 5, 5), **_attributes(3, 3, pads=(1, 1, 1, 1)), count_pads=True)
case("average_pool", normal(1, 1, 6), **_attributes(3, stride=2, pads=(1, 1), dilation=2), note="dilated pads")
