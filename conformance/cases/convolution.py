"""Cases of convolutions: strides, pads, dilations, groups, one to three axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..case import Tier, case
from ..draw import EVERY, MODERATE
from ..operands import Special, normal, special_rows
from .sizes import VIEWS


def _attributes(axes: int, stride: int = 1, pads: Any = None, dilation: int = 1, groups: int = 1) -> dict[str, Any]:
    made = {"strides": (stride,) * axes, "pads": pads or (0,) * (2 * axes), "dilations": (dilation,) * axes}
    return {**made, "groups": groups}


case("conv", normal(2, 3, 7), normal(4, 3, 3), **_attributes(1))
case("conv", normal(1, 3, 8, 6), normal(5, 3, 3, 2), normal(5), **_attributes(2, pads=(1, 0, 1, 1)))
case("conv", normal(2, 4, 9, 9), normal(6, 2, 3, 3), normal(6), **_attributes(2, 2, (1, 1, 1, 1), groups=2))
case("conv", normal(1, 4, 7, 7), normal(4, 1, 3, 3), **_attributes(2, 1, (2, 2, 2, 2), 2, 4), note="depthwise")
case("conv", normal(1, 2, 4, 5, 6), normal(3, 2, 2, 2, 2), **_attributes(3, 2, (0, 1, 0, 1, 0, 1)), note="volume")
case("conv", normal(0, 3, 7), normal(4, 3, 3), **_attributes(1), note="empty")
for _channels in (1, 15, 17, 31, 33, 65):
    case("conv", normal(1, _channels, 9), normal(5, _channels, 3), **_attributes(1), label=f"{_channels}-channels")
for _outputs in (15, 17, 33, 65):
    case("conv", normal(1, 5, 9), normal(_outputs, 5, 3), **_attributes(1), label=f"{_outputs}-outputs")
for _size in (31, 33, 65, 129):
    case("conv", normal(1, 5, _size), normal(6, 5, 4), **_attributes(1, pads=(3, 0)), label=f"{_size}-places")
case("conv", normal(1, 80, 64), normal(24, 80, 3), normal(24), **_attributes(1, pads=(1, 1)), label="frames")
case("conv", normal(1, 80, 64), normal(24, 80, 3), normal(24), **_attributes(1, 2, (1, 1)), label="frames-halved")
case("conv", normal(1, 3, 42, 56), normal(48, 3, 14, 14), **_attributes(2, 14), label="patches")
case("conv", normal(1, 33, 9, 9), normal(17, 33, 1, 1), **_attributes(2), label="pointwise")
case("conv", normal(1, 9, 31, 41), normal(10, 9, 3, 3), **_attributes(2, pads=(1, 1, 1, 1)), data=EVERY, label="plane")
case("conv", normal(2, 96, 33), normal(96, 1, 4), **_attributes(1, 1, (3, 0), 1, 96), label="causal", data=MODERATE)
case("conv", normal(1, 512, 5), normal(3, 512, 3), **_attributes(1), label="long", data=("normal", "outliers"))
case("conv", normal(1, 64, 56, 56), normal(64, 64, 3, 3), **_attributes(2), label="block", tier=Tier.FULL)

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
for _channels in (1, 15, 17, 33, 65):
    case(
        "conv_transpose",
        normal(1, _channels, 9),
        normal(_channels, 5, 3),
        **_attributes(1, 2),
        output_padding=(1,),
        label=f"{_channels}-channels",
    )
case(
    "conv_transpose",
    normal(1, 9, 15, 21),
    normal(9, 10, 3, 3),
    **_attributes(2, 2, (1, 1, 1, 1)),
    output_padding=(1, 1),
    data=EVERY,
    label="plane",
)

_ROWS = special_rows(7)
_STILL: dict[str, Any] = {"output_padding": (0,)}
for _name, _more in (("conv", {}), ("conv_transpose", _STILL)):
    _x = Special(lambda s: np.reshape(_ROWS.layout(s), (1, 1, 441)))
    _weight = Special(lambda s: _ROWS.layout(s)[:21, None, :5])
    case(_name, _x, normal(1, 1, 3), **_attributes(1), **_more, label="specials", special=True)
    if _name == "conv":
        case(_name, normal(2, 1, 9), _weight, **_attributes(1), label="special-weights", special=True)
    for _layout in VIEWS:
        _operands = normal(2, 5, 33), normal(5, 5, 3), normal(5)
        case(_name, *_operands, **_attributes(1), **_more, label=_layout.value, layout=_layout)
