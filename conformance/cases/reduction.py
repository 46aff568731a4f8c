"""Cases of reductions and orderings."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import int32, int64, uint8

from ..case import Tier, case
from ..draw import EVERY, MODERATE
from ..operands import floats, ints, normal, rng, special_rows
from .sizes import TAILS, VIEWS

_SUMS = tuple(data for data in EVERY if data != "alternating")
"""Data whose long sums do not cancel altogether: those are smaller than their error in any order."""
_LONG = tuple(data for data in _SUMS if data != "tiny")
"""As `_SUMS`, but without float16 subnormals, which make long sums vague on devices that flush them."""

for _name in ("sum", "mean", "amax"):
    case(_name, normal(3, 5), axis=1)
    case(_name, normal(3, 5), axis=0, keepdims=True)
    case(_name, normal(2, 3, 4), axis=-2)
    case(_name, normal(5, 321), axis=-1, note="long")
    case(_name, normal(4, 320, shift=5.0), axis=1, note="one sign")
    case(_name, normal(0, 5), axis=1, note="empty")
    case(_name, floats([[np.inf, 1], [np.nan, 2], [-np.inf, np.inf], [6e4, 6e4]]), axis=1, note="edges", special=True)
    for _size in TAILS:
        case(_name, normal(7, _size), axis=1)
    for _size in (31, 33, 65, 129):
        case(_name, normal(_size, 17), axis=0)
        case(_name, normal(3, _size, 5), axis=1)
    for _tokens in (1, 2, 8):
        case(_name, normal(_tokens, 2048), axis=-1, keepdims=True)
    case(_name, normal(10007, 17), axis=1, data=MODERATE, note="many")
    case(_name, normal(37, 320), axis=1, data=_SUMS)
    case(_name, normal(5, 4096), axis=1, data=_LONG)
    case(_name, normal(33, 1031), axis=0, data=("normal", "constant", "outliers"), note="columns")
    case(_name, normal(10007, 321), axis=1, data=_SUMS, tier=Tier.FULL)
    case(_name, normal(3, 151936, shift=2.0), axis=1, data=MODERATE, note="vocabulary", tier=Tier.FULL)
    for _layout in VIEWS:
        case(_name, normal(17, 65), axis=1, layout=_layout)
        case(_name, normal(17, 65), axis=0, layout=_layout)
        case(_name, normal(3, 33, 5), axis=1, layout=_layout)
    case(_name, special_rows(5), axis=1, label="specials", special=True)
    case(_name, special_rows(33), axis=0, label="specials-down", special=True)
case("sum", normal(3, 0), axis=1, note="nothing")
case("sum", ints(np.zeros((3, 0))), axis=1, note="nothing int32")
for _name in ("sum", "amax", "cumsum"):
    case(_name, ints([[1, -2, 3], [40, 50, -60]]), axis=1, note="int32")
    case(_name, ints([[1, 2], [3, 4]], int64), axis=0, note="int64")
    case(_name, ints(rng(_name).integers(-(2**24), 2**24, (7, 321))), axis=1, note="many int32")
    case(_name, ints(rng(_name).integers(-(2**50), 2**50, (7, 321)), int64), axis=1, note="many int64")
    for _layout in VIEWS:
        case(_name, ints(rng(_name).integers(-99, 99, (7, 65))), axis=1, note=f"int32 {_layout}", layout=_layout)
for _name in ("sum", "amax"):
    case(_name, ints([[1, 2], [3, 200]], uint8), axis=0, note="uint8")

case("cumsum", normal(3, 7), axis=1)
case("cumsum", normal(7, 3), axis=0)
case("cumsum", normal(2, 320), axis=-1, note="long")
case("cumsum", normal(0, 3), axis=1, note="empty")
case("cumsum", ints([3, 4], int64), axis=0, note="pair")
for _size in TAILS:
    case("cumsum", normal(5, _size), axis=1)
for _size in (31, 33, 129):
    case("cumsum", normal(_size, 7), axis=0)
    case("cumsum", normal(3, _size, 5), axis=1)
case("cumsum", normal(311, 33), axis=1, data=EVERY, note="many")
case("cumsum", normal(5, 2111), axis=1, data=_SUMS)
case("cumsum", normal(3, 32000), axis=1, data=_SUMS, tier=Tier.FULL)
for _layout in VIEWS:
    case("cumsum", normal(17, 65), axis=1, layout=_layout)
    case("cumsum", normal(17, 65), axis=0, layout=_layout)
case("cumsum", special_rows(5), axis=1, label="specials", special=True)

_TIES = floats([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [-np.inf, -np.inf, 0.0, -0.0]])
_NANS = floats([[1.0, np.nan, 3.0, np.nan], [np.inf, 0.0, np.nan, -np.inf], [-np.inf, -np.inf, -np.inf, -np.inf]])
for _x, _note in ((_TIES, "ties"), (_NANS, "nan"), (normal(5, 33), "normal"), (normal(0, 4), "empty")):
    case("argmax", _x, note=_note)
    case("topk", _x, k=3, note=_note)
for _size in TAILS:
    case("argmax", normal(7, _size))
    case("topk", normal(7, _size), k=min(_size, 8))


def _often_equal(*shape: int) -> Any:
    """Quarters, so that many are equal."""
    return floats(rng("equal", shape).integers(-9, 10, shape) / 4)


for _size in (33, 65, 129, 1031):
    case("argmax", _often_equal(31, _size), note="equal")
    case("topk", _often_equal(31, _size), k=9, note="equal")
case("argmax", normal(1543, 7), data=EVERY, note="many")
case("argmax", normal(8, 4096), data=EVERY)
case("argmax", normal(2, 32000), note="vocabulary")
case("argmax", normal(65, 17), axis=0)
case("argmax", normal(7, 7), axis=0, note="square")
case("argmax", normal(3, 33, 5), axis=1)
case("topk", normal(1511, 64), k=8, data=EVERY, note="experts")
case("topk", normal(3, 4096), k=50, data=EVERY)
case("topk", normal(2, 32000), k=20, note="vocabulary", tier=Tier.FULL)
case("topk", normal(9, 129), k=129, note="sort 129")
case("topk", _often_equal(9, 129), k=129, note="sort equal")
for _layout in VIEWS:
    case("argmax", normal(17, 65), layout=_layout)
    case("argmax", normal(17, 65), axis=0, layout=_layout)
    case("topk", normal(17, 65), k=5, layout=_layout)
case("argmax", special_rows(5), label="specials", special=True)
case("topk", special_rows(5), k=3, label="specials", special=True)
case("topk", special_rows(33), k=33, label="specials-sorted", special=True)
case("argmax", normal(4, 3, 2), axis=1)
case("argmax", normal(7), note="vector")
case("topk", normal(2, 9), k=9, note="sort")
case("topk", normal(2, 9), k=0, note="nothing")
for _kind in (int32, int64, uint8):
    case("argmax", ints([[1, 200, 200], [7, 7, 0]], _kind), note=_kind.name)
    case("topk", ints([[1, 200, 200], [0, 7, 0]], _kind), k=2, note=_kind.name)
    _many = ints(rng("order", _kind).integers(0, 200, (7, 129)), _kind)
    case("argmax", _many, note=f"many {_kind}")
    case("topk", _many, k=17, note=f"many {_kind}")

_LOGITS = ("normal", "uniform", "tiny", "constant", "alternating", "offset")
case("softmax", normal(3, 7, scale=3))
case("softmax", normal(4, 3, 5), axis=1)
case("softmax", normal(2, 320, scale=5), axis=-1, note="long")
case("softmax", normal(0, 5), note="empty")
case("softmax", normal(3, 1), note="one")
for _size in TAILS:
    case("softmax", normal(5, _size, scale=3))
for _size in (31, 33, 129):
    case("softmax", normal(_size, 7, scale=3), axis=0)
for _tokens in (1, 2, 8):
    case("softmax", normal(_tokens, 2048, scale=3))
case("softmax", normal(311, 33), data=_LOGITS, note="many")
case("softmax", normal(37, 320), data=_LOGITS)
case("softmax", normal(5, 4096), data=_LOGITS)
case("softmax", normal(2, 32000, scale=3), data=_LOGITS, note="vocabulary", tier=Tier.FULL)
for _layout in VIEWS:
    case("softmax", normal(17, 65, scale=3), layout=_layout)
    case("softmax", normal(17, 65, scale=3), axis=0, layout=_layout)
case("softmax", special_rows(7), label="specials", special=True)
case(
    "softmax",
    floats([[0.0, -np.inf, 1.0], [1e4, 0.0, -1e4], [-np.inf, -np.inf, -np.inf], [np.inf, 0.0, 1.0]]),
    note="edges",
    special=True,
)
