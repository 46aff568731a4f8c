"""Cases of convolutions: strides, pads, dilations, groups, one to three axes."""

from __future__ import annotations

from typing import Any

from .case import case, normal


def _attributes(axes: int, stride: int = 1, pads: Any = None, dilation: int = 1, groups: int = 1) -> dict[str, Any]:
    made = {"strides": (stride,) * axes, "pads": pads or (0,) * (2 * axes), "dilations": (dilation,) * axes}
    return {**made, "groups": groups}


case("conv", normal(2, 3, 7), normal(4, 3, 3), **_attributes(1))
case("conv", normal(1, 3, 8, 6), normal(5, 3, 3, 2), normal(5), **_attributes(2, pads=(1, 0, 1, 1)))
case("conv", normal(2, 4, 9, 9), normal(6, 2, 3, 3), normal(6), **_attributes(2, 2, (1, 1, 1, 1), groups=2))
case("conv", normal(1, 4, 7, 7), normal(4, 1, 3, 3), **_attributes(2, 1, (2, 2, 2, 2), 2, 4), note="depthwise")
case("conv", normal(1, 2, 4, 5, 6), normal(3, 2, 2, 2, 2), **_attributes(3, 2, (0, 1, 0, 1, 0, 1)), note="volume")
case("conv", normal(0, 3, 7), normal(4, 3, 3), **_attributes(1), note="empty")

case("conv_transpose", normal(2, 3, 5), normal(3, 4, 3), **_attributes(1), output_padding=(0,))
case("conv_transpose", normal(1, 3, 4, 3), normal(3, 2, 3, 3), normal(2), **_attributes(2, 2), output_padding=(1, 0))
case(
    "conv_transpose",
    normal(2, 4, 4, 4),
    normal(4, 3, 3, 2),
    normal(6),
    **_attributes(2, 2, (1, 0, 2, 1), groups=2),
    output_padding=(1, 1),
)
case("conv_transpose", normal(1, 2, 6), normal(2, 2, 3), **_attributes(1, 3, None, 2), output_padding=(2,))
case("conv_transpose", normal(1, 1, 3), normal(1, 1, 2), **_attributes(1, 1, (2, 1)), output_padding=(0,), note="cut")
case("conv_transpose", normal(1, 2, 2, 3, 2), normal(2, 1, 2, 2, 2), **_attributes(3, 2), output_padding=(0, 0, 0))
