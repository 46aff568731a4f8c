"""Cases of reductions, orderings, norms, rotations and gated activations."""

from __future__ import annotations

import numpy as np

from xinheng.core.ir.dtype import float32, int32, int64, uint8

from .case import F, T, case, floats, ints, normal, rng

for _name in ("sum", "mean", "amax"):
    case(_name, normal(3, 5), axis=1)
    case(_name, normal(3, 5), axis=0, keepdims=True)
    case(_name, normal(2, 3, 4), axis=-2)
    case(_name, normal(5, 321), axis=-1, note="long")
    case(_name, normal(4, 320, shift=5.0), axis=1, note="one sign")
    case(_name, normal(0, 5), axis=1, note="empty")
    case(_name, floats([[np.inf, 1], [np.nan, 2], [-np.inf, np.inf], [6e4, 6e4]]), axis=1, note="special", special=True)
case("sum", normal(3, 0), axis=1, note="nothing")
for _name in ("sum", "amax"):
    case(_name, ints([[1, -2, 3], [40, 50, -60]]), axis=1, note="int32")
    case(_name, ints([[1, 2], [3, 4]], int64), axis=0, note="int64")
    case(_name, ints([[1, 2], [3, 200]], uint8), axis=0, note="uint8")
case("cumsum", normal(3, 7), axis=1)
case("cumsum", normal(7, 3), axis=0)
case("cumsum", normal(2, 320), axis=-1, note="long")
case("cumsum", normal(0, 3), axis=1, note="empty")
case("cumsum", ints([[1, -2, 3]]), axis=1, note="int32")
case("cumsum", ints([3, 4], int64), axis=0, note="int64")

_TIES = floats([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0], [-np.inf, -np.inf, 0.0, -0.0]])
_NANS = floats([[1.0, np.nan, 3.0, np.nan], [np.inf, 0.0, np.nan, -np.inf], [-np.inf, -np.inf, -np.inf, -np.inf]])
for _x, _note in ((_TIES, "ties"), (_NANS, "nan"), (normal(5, 33), "normal"), (normal(0, 4), "empty")):
    case("argmax", _x, note=_note)
    case("topk", _x, k=3, note=_note)
case("argmax", normal(4, 3, 2), axis=1)
case("argmax", normal(7), note="vector")
case("topk", normal(2, 9), k=9, note="sort")
case("topk", normal(2, 9), k=0, note="nothing")
for _kind in (int32, int64, uint8):
    case("argmax", ints([[1, 200, 200], [7, 7, 0]], _kind), note=_kind.name)
    case("topk", ints([[1, 200, 200], [0, 7, 0]], _kind), k=2, note=_kind.name)

case("softmax", normal(3, 7, scale=3))
case("softmax", normal(4, 3, 5), axis=1)
case("softmax", normal(2, 320, scale=5), axis=-1, note="long")
case("softmax", normal(0, 5), note="empty")
case("softmax", normal(3, 1), note="one")
case(
    "softmax",
    floats([[0.0, -np.inf, 1.0], [1e4, 0.0, -1e4], [-np.inf, -np.inf, -np.inf], [np.inf, 0.0, 1.0]]),
    note="special",
    special=True,
)

case("rms_norm", normal(3, 64), normal(64, shift=1.0), eps=1e-6)
case("rms_norm", normal(2, 5, 33), normal(33), eps=1e-5, note="odd")
case("rms_norm", normal(4, 320, scale=1e-3), normal(320, shift=1.0), eps=1e-5, note="tiny")
case("rms_norm", normal(0, 8), normal(8), eps=1e-6, note="empty")
case("rms_norm", normal(7), normal(7), eps=1e-6, note="vector")
case(
    "rms_norm",
    floats([[1e4, -6e4, 3e4], [0.0, 0.0, 0.0]]),
    floats([1.0, 2.0, 0.5]),
    eps=1e-6,
    note="range",
    special=True,
)
case("silu_and_mul", normal(3, 17, scale=3), normal(3, 17))
case("silu_and_mul", normal(0, 4), normal(0, 4), note="empty")
case("silu_and_mul", floats([-100.0, 88.0, 0.0, -20.0]), floats([1.0, 2.0, 3.0, 4.0]), note="special", special=True)
for _form in ("none", "tanh"):
    case("gelu_and_mul", normal(3, 17, scale=3), normal(3, 17), approximate=_form)
    case("gelu_and_mul", normal(0, 4), normal(0, 4), approximate=_form, note="empty")
    case(
        "gelu_and_mul", floats([-100.0, 88.0, 0.0, -5.0]), floats([1.0, 2.0, 3.0, 4.0]), approximate=_form, special=True
    )


def _rotary(x: F, half: int, note: str, interleaved: bool = False) -> None:
    angles = rng("angles", half, note).uniform(0, 6.3, (x.data.shape[0], half))
    tables = (T(np.cos(angles), float32), T(np.sin(angles), float32))
    case("rotary_embedding", x, *tables, interleaved=interleaved, note=note)


for _interleaved in (False, True):
    _note = "interleaved" if _interleaved else "halves"
    _rotary(normal(5, 3, 8), 4, _note, _interleaved)
    _rotary(normal(4, 2, 10), 3, f"{_note} partial", _interleaved)
    _rotary(normal(3, 1, 6), 0, f"{_note} nothing", _interleaved)
    _rotary(normal(0, 2, 8), 4, f"{_note} empty", _interleaved)
