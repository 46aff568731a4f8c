"""Cases of ops that move elements or make tensors."""

from __future__ import annotations

from typing import Any

from xinheng.core.ir.dtype import DTYPES, bool_, int8, int32, int64, uint8

from ..case import Tier, case
from ..operands import FLOAT, Patterns, bools, floats, ints, normal, rng, special_rows, specials
from .sizes import PATTERNS, VECTORS, VIEWS

case("full", shape=(2, 3), value=0.1, dtype=FLOAT)
case("full", shape=(), value=-1.0, dtype=FLOAT, note="scalar")
case("full", shape=(0, 2), value=1.0, dtype=FLOAT, note="empty")
for _value, _note in ((float("-inf"), "infinite"), (float("nan"), "nan"), (-0.0, "minus zero"), (1e-45, "tiny")):
    case("full", shape=(3,), value=_value, dtype=FLOAT, note=_note, special=True)
for _size in (1, 31, 33, 127, 129, 1031):
    case("full", shape=(3, _size), value=-0.7, dtype=FLOAT, note=f"3x{_size}")
case("full", shape=(7, 1536), value=1 / 3, dtype=FLOAT, note="large")
case("full", shape=(3,), value=2**40 + 1, dtype=int64, note="int64")
case("full", shape=(3,), value=7, dtype=int32, note="int32")
case("full", shape=(129,), value=-7, dtype=int8, note="129 int8")
case("full", shape=(3,), value=True, dtype=bool_, note="bool")
for _kind in (int32, int64):
    for _size in (0, 1, 7, 31, 33, 129, 10007):
        case("arange", size=_size, dtype=_kind)
for _size in (1, 31, 33, 200, 256):  # integers that bfloat16 has too
    case("arange", size=_size, dtype=FLOAT)
case("arange", size=1031, dtype=FLOAT, note="rounded")
case("arange", size=2048, dtype=FLOAT, note="2048")
case("arange", size=8449, dtype=FLOAT, note="long")
case("arange", size=256, dtype=uint8, note="uint8")

case("reshape", normal(2, 3, 4), shape=(6, 4))
case("reshape", normal(6), shape=(1, 6, 1))
case("reshape", normal(1), shape=(), note="scalar")
case("reshape", normal(0, 3), shape=(3, 0), note="empty")
case("reshape", ints([[1, 2], [3, 4]]), shape=(4,), note="int32")
case("reshape", floats([0.0, -0.0, -1.0, 1.0]), shape=(2, 2), note="signs of zero", special=True)
case("reshape", normal(7, 576), shape=(7, 9, 64))
case("reshape", normal(7, 9, 64), shape=(7, 576))
case("reshape", Patterns(PATTERNS), shape=(64, 64), label="patterns", special=True)
case("permute", normal(2, 3, 5), axes=(2, 0, 1))
case("permute", normal(4, 3), axes=(1, 0))
case("permute", normal(), axes=(), note="scalar")
case("permute", normal(0, 3), axes=(1, 0), note="empty")
case("permute", bools([[True, False]]), axes=(1, 0), note="bool")
case("permute", special_rows(5), axes=(1, 0), label="specials", special=True)
for _sizes in ((15, 17), (31, 33), (64, 64), (65, 63), (127, 129), (1, 1031), (1031, 1)):
    case("permute", normal(*_sizes), axes=(1, 0))
for _axes in ((0, 2, 1, 3), (1, 0, 2, 3), (3, 2, 1, 0), (0, 1, 3, 2)):
    case("permute", normal(2, 9, 17, 33), axes=_axes)
case("expand", normal(3, 1), shape=(2, 3, 4))
case("expand", normal(), shape=(2, 2), note="scalar")
case("expand", normal(1, 3), shape=(0, 3), note="empty")
case("expand", ints([5]), shape=(3,), note="int32")
case("expand", specials(), shape=(3, 21), label="specials", special=True)
for _size in VECTORS:
    case("expand", normal(1, _size), shape=(7, _size))
    case("expand", normal(_size, 1), shape=(_size, 7))
case("expand", normal(7, 3, 1, 64), shape=(7, 3, 3, 64), note="heads")
case("concat", normal(2, 3), normal(4, 3), normal(0, 3), axis=0)
case("concat", normal(2, 3), normal(2, 1), axis=-1)
case("concat", normal(5), axis=0, note="one")
case("concat", ints([1], int64), ints([2, 3], int64), axis=0, note="int64")
case("concat", bools([True]), bools([False]), axis=0, note="bool")
case("concat", Patterns(PATTERNS), Patterns(PATTERNS), axis=0, label="patterns", special=True)
case("concat", special_rows(5), special_rows(7), axis=1, label="specials", special=True)
for _size in (1, 31, 33, 65, 127, 129):
    case("concat", normal(5, _size), normal(5, 3), normal(5, 2 * _size), axis=1)
    case("concat", normal(_size, 7), normal(3, 7), axis=0)
case("concat", normal(2, 3, 33), normal(2, 4, 33), axis=1, note="middle")
case("concat", *(normal(3, 7) for _ in range(9)), axis=1, note="nine")
case("split", normal(7, 3), sizes=(2, 0, 5), axis=0)
case("split", normal(2, 5), sizes=(1, 4), axis=-1)
case("split", normal(2, 5), sizes=(5,), axis=1, note="one")
case("split", ints([1, 2, 3]), sizes=(1, 2), axis=0, note="int32")
case("split", special_rows(5), sizes=(2, 3), axis=1, label="specials", special=True)
for _pieces in ((31, 33), (1, 128), (64, 64, 1), (127, 129, 65)):
    case("split", normal(5, sum(_pieces)), sizes=_pieces, axis=1)
    case("split", normal(sum(_pieces), 5), sizes=_pieces, axis=0)
case("split", normal(7, 960), sizes=(576, 192, 192), axis=-1, note="heads")
case("slice", normal(7, 3), axis=0, start=1, stop=6)
case("slice", normal(7, 3), axis=0, start=1, stop=7, step=3)
case("slice", normal(3, 11), axis=1, start=1, stop=7, step=3, note="whole steps")
case("slice", normal(2, 5), axis=-1, start=3, stop=99, note="clipped")
case("slice", normal(2, 5), axis=1, start=4, stop=2, note="empty")
case("slice", normal(2, 5), axis=1, start=9, stop=12, step=2, note="beyond")
case("slice", ints([1, 2, 3, 4]), axis=0, start=0, stop=4, step=2, note="int32")
case("slice", special_rows(7), axis=1, start=1, stop=6, step=2, label="specials", special=True)
for _start, _stop, _step in ((0, 31, 1), (1, 34, 1), (3, 128, 1), (1, 129, 2), (0, 129, 3), (5, 69, 7)):
    case("slice", normal(5, 129), axis=1, start=_start, stop=_stop, step=_step)
    case("slice", normal(129, 5), axis=0, start=_start, stop=_stop, step=_step)
case("slice", normal(3, 33, 17), axis=1, start=2, stop=31, note="middle")


def _below(size: int, *shape: int) -> Any:
    """Indices below `size`, repeated and in any order."""
    return rng("indices", size, shape).integers(0, size, shape)


case("index_select", normal(7, 3), ints([6, 0, 0, 3]))
case("index_select", normal(2, 5), ints([[4, 1], [1, 0]], int64), axis=1)
case("index_select", normal(2, 5), ints(2), axis=-1, note="scalar")
case("index_select", normal(4, 3), ints([]), note="empty")
case("index_select", ints([10, 20, 30]), ints([2, 2]), note="int32")
case("index_select", special_rows(5), ints(_below(63, 40)), label="specials", special=True)
case("gather", normal(3, 5), ints([[4], [0], [2]]))
case("gather", normal(3, 5), ints([[2, 0, 1, 1, 2]]), axis=0)
case("gather", floats([3.0, 1.0, 2.0]), ints([1, 1, 0, 2], int64))
case("gather", normal(2, 3), ints([[], []]), note="empty")
case("gather", ints([[1, 2], [3, 4]]), ints([[1], [0]]), note="int32")
case("gather", special_rows(5), ints(_below(5, 63, 9)), label="specials", special=True)
for _size in (1, 31, 33, 65, 129):
    case("index_select", normal(67, _size), ints(_below(67, 9)))
    case("index_select", normal(5, _size), ints(_below(_size, 33)), axis=1)
    case("gather", normal(5, _size), ints(_below(_size, 5, 2 * _size)))
    case("gather", normal(_size, 5), ints(_below(_size, 7, 5)), axis=0)
case("index_select", normal(1031, 64), ints(_below(1031, 3, 55), int64), note="table")
case("gather", normal(3, 33, 17), ints(_below(33, 3, 9, 17), int64), axis=1, note="middle")
case("gather", normal(3, 32000), ints(_below(32000, 3, 129)), note="vocabulary")
case("index_select", normal(32000, 64), ints(_below(32000, 129)), note="vocabulary", tier=Tier.FULL)

for _layout in VIEWS:
    case("reshape", normal(6, 5, 4), shape=(10, 12), layout=_layout)
    case("permute", normal(6, 5, 7), axes=(1, 2, 0), layout=_layout)
    case("expand", normal(5, 1, 7), shape=(2, 5, 3, 7), layout=_layout)
    case("concat", normal(5, 33), normal(5, 7), axis=1, layout=_layout)
    case("split", normal(7, 33), sizes=(16, 17), axis=1, layout=_layout)
    case("slice", normal(33, 17), axis=0, start=1, stop=30, step=2, layout=_layout)
    case("index_select", normal(17, 33), ints(_below(17, 9)), layout=_layout)
    case("gather", normal(5, 33), ints(_below(33, 5, 17)), layout=_layout)

for _name in ("float8_e4m3fn", "float8_e5m2", "int16", "int8", "uint16", "uint32", "uint64", "int64", "uint8", "bool"):
    _kind = DTYPES[_name]
    _x = ints([[1, 2, 3], [4, 5, 6]] if _kind is not bool_ else [[1, 0, 1], [0, 0, 1]], _kind)
    case("reshape", _x, shape=(3, 2), note=_name)
    case("permute", _x, axes=(1, 0), note=f"{_name} turned")
    case("expand", ints([[1], [0]], _kind), shape=(2, 2), note=_name)
    case("concat", _x, _x, axis=0, note=f"{_name} joined")
    case("split", _x, sizes=(1, 2), axis=1, note=_name)
    case("slice", _x, axis=1, start=1, stop=3, note=_name)
    case("index_select", _x, ints([1, 0]), note=_name)
    case("gather", _x, ints([[2], [0]]), note=_name)
    case("full", shape=(2,), value=1.0, dtype=_kind, note=f"{_name} one")
for _kind in (int32, int64):  # numbers that float32 has not
    _x = ints(rng("wide", _kind).integers(-(2**31), 2**31, (33, 65)) * (1 if _kind is int32 else 2**31 + 1), _kind)
    case("permute", _x, axes=(1, 0), note=f"wide {_kind}")
    case("concat", _x, _x, axis=1, note=f"wide {_kind}")
    case("index_select", _x, ints(_below(65, 17)), axis=1, note=f"wide {_kind}")
    case("gather", _x, ints(_below(65, 33, 17)), note=f"wide {_kind}")
