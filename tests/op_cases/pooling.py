"""Cases of pools: strides, pads, dilations, one to three axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import case, floats, ints, normal


def _attributes(*kernel: int, stride: int = 1, pads: Any = None, dilation: int = 1) -> dict[str, Any]:
    n = len(kernel)
    return {
        "kernel": kernel,
        "strides": (stride,) * n,
        "pads": pads or (0,) * (2 * n),
        "dilations": (dilation,) * n,
    }


for _name in ("max_pool", "average_pool"):
    case(_name, normal(2, 3, 7), **_attributes(3))
    case(_name, normal(1, 2, 8, 6), **_attributes(2, 3, stride=2, pads=(0, 1, 1, 1)))
    case(_name, normal(1, 2, 7, 7), **_attributes(2, 2, dilation=3), note="dilated")
    case(_name, normal(1, 2, 4, 5, 4), **_attributes(2, 2, 2, stride=2, pads=(0, 1, 0, 0, 0, 0)), note="volume")
    case(_name, normal(2, 2, 4), **_attributes(1), note="one")
    case(_name, normal(0, 3, 7), **_attributes(3), note="empty")
case("max_pool", floats([[[1.0, np.nan, 2.0, -np.inf, -np.inf]]]), **_attributes(2), note="special", special=True)
case("max_pool", ints([[[3, -9, 2, 7]]]), **_attributes(2, pads=(1, 1)), note="int32")
case("average_pool", normal(1, 2, 5, 5), **_attributes(3, 3, pads=(1, 1, 1, 1)), count_pads=True)
case("average_pool", normal(1, 1, 6), **_attributes(3, stride=2, pads=(1, 1), dilation=2), note="dilated pads")
