"""Cases of ops that write to computed places, and of those whose result is as large as the data say."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import int64

from ..case import case
from ..draw import EVERY
from ..operands import bools, floats, ints, normal, rng, special_rows, specials
from .sizes import VIEWS

_COMBINED = ("add", "mul", "max", "min")

for _reduction in ("none", *_COMBINED):
    case("scatter", normal(3, 5), ints([[1, 3], [4, 0]]), normal(2, 2), axis=1, reduction=_reduction)
    case(
        "scatter",
        ints([[1, 2], [3, 4]]),
        ints([[1, 0]]),
        ints([[5, 6]]),
        axis=0,
        reduction=_reduction,
        note=f"int32 {_reduction}",
    )
for _reduction in _COMBINED:
    case(
        "scatter", normal(4), ints([2, 2, 0, 2]), normal(4), axis=0, reduction=_reduction, note=f"repeated {_reduction}"
    )
case("scatter", normal(4, 3), ints([[3, 0, 1], [1, 2, 0]], int64), normal(2, 3), axis=0)
case("scatter", normal(2, 3, 4), ints(np.zeros((2, 1, 4))), normal(2, 1, 4), axis=-2, note="negative axis")
case("scatter", normal(3), ints([]), normal(0), axis=0, note="empty")
case("scatter", bools([True, False, True]), ints([0, 1]), bools([False, True]), axis=0, note="bool")


def _places(rows: int, columns: int, below: int) -> Any:
    """Different places within each row [rows, columns]."""
    random = rng("places", rows, columns, below)
    return ints(np.stack([random.permutation(below)[:columns] for _ in range(rows)]))


for _size in (1, 31, 33, 65, 129):
    case("scatter", normal(5, 2 * _size), _places(5, _size, 2 * _size), normal(5, _size), axis=1)
case("scatter", normal(7, 1536), _places(7, 576, 1536), normal(7, 576), axis=1, data=EVERY)
case("scatter", normal(7, 1536), _places(7, 1536, 1536), normal(7, 1536), axis=1, reduction="add", data=EVERY)
for _reduction in _COMBINED:
    _repeated = ints(rng("repeated", _reduction).integers(0, 9, (33, 65)))
    case("scatter", normal(9, 65), _repeated, normal(33, 65), axis=0, reduction=_reduction, note=f"often {_reduction}")
    case(
        "scatter",
        special_rows(5),
        ints(np.tile(np.arange(63)[::-1, None], 5)),
        special_rows(5),
        axis=0,
        reduction=_reduction,
        label=f"specials_{_reduction}",
        special=True,
    )
case("scatter", special_rows(5), _places(63, 3, 5), special_rows(3), axis=1, label="specials", special=True)
for _layout in VIEWS:
    case("scatter", normal(5, 66), _places(5, 33, 66), normal(5, 33), axis=1, layout=_layout)

case("nonzero", floats([[0.0, 1.5, 0.0], [-2.0, 0.0, 3.0]]))
case("nonzero", floats([0.0, np.nan, np.inf]), note="edges", special=True)
case("nonzero", ints([[[1], [0]], [[0], [7]]]), note="int32")
case("nonzero", bools([False, True, True]), note="bool")
case("nonzero", floats([0.0, 0.0]), note="none")
case("nonzero", specials(), label="specials", special=True)
for _size in (1, 31, 33, 127, 129, 1031):
    case("nonzero", floats(rng("sparse", _size).integers(-1, 2, (3, _size)) / 4))
case("nonzero", floats(rng("sparse").integers(-1, 2, (5, 17, 129)) / 4), note="many")
for _layout in VIEWS:
    case("nonzero", floats(rng("sparse").integers(-1, 2, (5, 65)) / 4), layout=_layout)
