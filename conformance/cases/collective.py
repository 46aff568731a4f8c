"""Cases of collectives, alone and as one of three ranks, of which the others hold what this one holds, moved on."""

from __future__ import annotations

from typing import Any

from xinheng.core.ir.dtype import int64

from ..case import case
from ..draw import EVERY, MODERATE
from ..operands import Coded, Normal, W, ints, normal, rng, special_rows
from .sizes import VIEWS

_GROUPS: dict[str, dict[str, Any]] = {"alone": {"group": "alone", "size": 1}, "of-three": {"group": "three", "size": 3}}

for _word, _group in _GROUPS.items():
    for _shape in ((3, 5), (6, 129), (9, 1031), (0, 5)):
        _label = f"{_word}_{'x'.join(map(str, _shape))}"
        _data = EVERY if _shape == (6, 129) else ("normal",)
        case("all_reduce", normal(*_shape), label=_label, data=_data, **_group)
        case("all_reduce", normal(*_shape), reduction="max", label=f"{_label}_max", **_group)
        case("all_gather", normal(*_shape), axis=0, label=f"{_label}_rows", **_group)
        case("all_gather", normal(*_shape), axis=-1, label=f"{_label}_columns", **_group)
        case("reduce_scatter", normal(*_shape), axis=0, label=f"{_label}_rows", data=_data, **_group)
        case("all_to_all", normal(*_shape), label=_label, **_group)
    case("reduce_scatter", normal(4, 9), axis=1, label=f"{_word}_columns", **_group)
    _whole = ints(rng("collected").integers(-1000, 1000, (6, 7)))
    _large = ints(rng("collected").integers(-(2**62), 2**62, (6, 7)), int64)
    for _kind, _x in (("int32", _whole), ("int64", _large)):
        case("all_reduce", _x, label=f"{_word}_{_kind}", **_group)
        case("all_gather", _x, axis=0, label=f"{_word}_{_kind}", **_group)
        case("reduce_scatter", _x, axis=0, label=f"{_word}_{_kind}", **_group)
        case("all_to_all", _x, label=f"{_word}_{_kind}", **_group)
    case("all_reduce", special_rows(5), label=f"{_word}_specials", special=True, **_group)
    case("all_gather", special_rows(5), axis=1, label=f"{_word}_specials", special=True, **_group)
    case("reduce_scatter", special_rows(5), axis=0, label=f"{_word}_specials", special=True, **_group)
    case("all_to_all", special_rows(5), label=f"{_word}_specials", special=True, **_group)
    for _layout in VIEWS:
        case("all_reduce", normal(3, 33), layout=_layout, label=f"{_word}_{_layout.value}", **_group)


def _weight(rows: int, columns: int, scheme: str) -> W:
    return W(Normal((rows, columns), ("sharded", rows, columns, scheme)), ((scheme, rows),))


for _word, _group in _GROUPS.items():
    for _scheme in ("float32", "float16", "bfloat16", "q8_0", "q4_0", "int4_g32"):
        case("matmul_all_reduce", normal(3, 64), _weight(5, 64, _scheme), label=f"{_word}_{_scheme}", **_group)
        _long = normal(2, 3, 320), _weight(33, 320, _scheme), normal(33)
        _data = MODERATE if _scheme in ("float32", "q8_0") else ("normal",)
        case("matmul_all_reduce", *_long, label=f"{_word}_{_scheme}_bias", data=_data, **_group)
    case("matmul_all_reduce", normal(3, 512), Coded((5, 512), "q4_k"), label=f"{_word}_q4_k", **_group)
    for _columns in (1, 33, 321):
        _tail = normal(3, _columns), _weight(5, _columns, "float32"), normal(5)
        case("matmul_all_reduce", *_tail, label=f"{_word}_K{_columns}", **_group)
    _loud = special_rows(64), _weight(5, 64, "float32")
    case("matmul_all_reduce", *_loud, label=f"{_word}_specials", special=True, **_group)
    _empty = normal(0, 64), _weight(5, 64, "float32"), normal(5)
    case("matmul_all_reduce", *_empty, label=f"{_word}_empty", **_group)
