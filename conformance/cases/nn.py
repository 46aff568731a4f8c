"""Cases of norms, rotary position embedding and gated activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xinheng.core.ir import DType
from xinheng.core.ir.dtype import float32

from ..case import FLOATS, Tier, case
from ..draw import EVERY, MODERATE, USUAL
from ..layout import Layout
from ..operands import Drawn, Patterns, Special, T, floats, gain, normal, positive, special_pair, special_rows, specials
from .sizes import BATCHES, PATTERNS, TAILS, VECTORS, VIEWS

_SPREAD = tuple(data for data in EVERY if data not in ("constant", "offset"))
"""Data whose variance is larger than its error for any length of rows."""


def _norms(
    *shape: int,
    note: str = "",
    data: Sequence[str] = USUAL,
    scale: float = 1.0,
    eps: float = 1e-6,
    seeds: tuple[int, int] = (1, 4),
    kinds: Sequence[DType] = FLOATS,
    tier: Tier = Tier.DEFAULT,
    layout: Layout = Layout.WHOLE,
) -> None:
    """All norms of a shape; weights are near one."""
    label = "x".join(f"{letter}{size}" for letter, size in zip("STD"[-len(shape) :], shape, strict=True))
    x, weight = normal(*shape, scale=scale), gain(shape[-1])
    how: dict[str, Any] = {"label": label, "note": note, "seeds": seeds, "kinds": kinds, "tier": tier}
    how |= {"layout": layout, "eps": eps}
    case("rms_norm", x, weight, data=data, **how)
    case("add_rms_norm", x, x, weight, data=data, **how)
    case("layer_norm", x, weight, gain(shape[-1], shift=0.0), data=[d for d in data if d in _SPREAD], **how)


for _hidden in (*TAILS, 64, 1000):
    _norms(3, _hidden)
for _tokens in BATCHES:
    _norms(_tokens, 576)
for _hidden in (33, 320, 4096):
    _norms(7, _hidden, data=EVERY, note="all", eps=1e-5)
_norms(2, 5, 33, eps=1e-5)
_norms(0, 8)
_norms(33, 2048, data=MODERATE, tier=Tier.FULL)
for _eps, _scale in ((1e-6, 1e-3), (1e-5, 3e-3), (1e-12, 1e-6), (1e-2, 0.1)):  # the mean square is near eps
    _wide = [kind for kind in FLOATS if kind.smallest_normal < _scale / 10]
    _norms(5, 320, note=f"eps {_eps}", scale=_scale, eps=_eps, seeds=(2, 8), kinds=_wide)
for _layout in VIEWS:
    _norms(5, 129, layout=_layout, note=_layout.value)
_CENTRE = normal(7, 320), gain(320), gain(320, shift=0.0)
case("layer_norm", *_CENTRE, eps=1e-5, data=("offset",), seeds=(3, 12), label="T7xD320", note="off centre")
case("rms_norm", normal(7), normal(7), eps=1e-6, label="D7")
case("add_rms_norm", normal(7), normal(7), normal(7), eps=1e-6, label="D7")
case("layer_norm", normal(4, 33), eps=1e-6, label="T4xD33", note="plain")
case("layer_norm", normal(4, 33), normal(33), eps=1e-12, label="T4xD33", note="weight only")
case("layer_norm", normal(4, 33), None, normal(33), eps=1e-5, label="T4xD33", note="bias only")
case("layer_norm", floats([[3.0, 3.0, 3.0], [1.0, -1.0, 0.0]]), eps=1e-5, label="constant-row", special=True)
_LOUD = floats([[1e4, -6e4, 3e4], [0.0, 0.0, 0.0]])
case("rms_norm", _LOUD, floats([1.0, 2.0, 0.5]), eps=1e-6, label="range", special=True)
case("add_rms_norm", _LOUD, floats(np.zeros((2, 3))), floats([1.0, 2.0, 0.5]), eps=1e-6, label="range", special=True)
case("rms_norm", special_rows(33), gain(33), eps=1e-6, label="specials", special=True)
case("rms_norm", normal(3, 21), specials(), eps=1e-6, label="special-weights", special=True)
case("add_rms_norm", special_rows(33), normal(63, 33), gain(33), eps=1e-6, label="specials", special=True)
case("layer_norm", special_rows(33), gain(33), gain(33, shift=0.0), eps=1e-6, label="specials", special=True)


def _tables(positions: Sequence[int], half: int, base: float = 1e4) -> tuple[T, T]:
    """Cosines and sines of positions."""
    angles = np.outer(positions, base ** (-np.arange(half) / max(half, 1)))
    return T(np.cos(angles), float32), T(np.sin(angles), float32)


def _rotary(x: Drawn, positions: Sequence[int], half: int, note: str, base: float = 1e4, **how: Any) -> None:
    """Both pairings of a rotation of the first 2 `half` elements of each head."""
    label = f"T{x.shape[0]}xH{x.shape[1]}xD{x.shape[2]}xR{2 * half}"
    for pairs in (False, True):
        words = f"{note} pairs" if pairs else note
        case("rotary_embedding", x, *_tables(positions, half, base), interleaved=pairs, label=label, note=words, **how)


_POSITIONS = {
    "near": (0, 1, 2, 3, 15, 127, 255, 256, 257),
    "far": (511, 512, 2047, 4095, 4096, 4097, 8191, 32767, 32768),
    "very far": (99_999, 100_000, 131_071, 131_072, 262_143, 524_289, 1_000_003, 7, 0),
}
for _note, _at in _POSITIONS.items():
    for _heads, _width, _half in ((3, 64, 32), (2, 80, 16), (1, 128, 64), (5, 10, 3)):
        _rotary(normal(9, _heads, _width), _at, _half, _note)
    _rotary(normal(9, 2, 256), _at, 128, f"{_note} base 5e5", 5e5, data=MODERATE)
for _tokens in BATCHES:
    _rotary(normal(_tokens, 9, 64), range(4090, 4090 + _tokens), 32, "step")
_rotary(normal(4100, 1, 8), range(4100), 4, "many")
_rotary(normal(2, 40, 192), (100, 5000), 32, "partial", data=MODERATE)
_rotary(normal(3, 1, 6), (0, 1, 2), 0, "nothing")
_rotary(normal(3, 1, 2), (5, 6, 7), 1, "one pair")
_rotary(normal(0, 2, 8), (), 4, "empty")
_rotary(normal(300, 32, 128), range(300), 64, "prefill", tier=Tier.FULL)
for _layout in VIEWS:
    for _pairs in (False, True):
        case(
            "rotary_embedding",
            normal(9, 3, 10),
            *_tables(_POSITIONS["far"], 3),
            interleaved=_pairs,
            label=f"{_layout.value}_pairs" if _pairs else _layout.value,
            layout=_layout,
        )
_HEADS = Special(lambda s: np.reshape(special_rows(8).layout(s), (21, 3, 8)))
case("rotary_embedding", _HEADS, *_tables(range(21), 4), label="specials", special=True)


def _gated(op: str, word: str = "", **attributes: Any) -> None:
    """Sizes, distributions, layouts and special values of an activation times a factor."""

    def label(size: str) -> str:
        return f"{size}_{word}" if word else size

    case(op, positive(1), normal(1), label=label("F1"), **attributes)
    for size in VECTORS[1:]:
        case(op, normal(size, scale=3), normal(size), label=label(f"F{size}"), **attributes)
    for tokens in BATCHES[:4]:
        case(op, normal(tokens, 1536), normal(tokens, 1536), label=label(f"T{tokens}xF1536"), **attributes)
    case(op, normal(7, 1536), normal(7, 1536), data=EVERY, label=label("T7xF1536"), **attributes)
    case(op, normal(7, 1031, scale=8), normal(7, 1031), data=USUAL, label=label("T7xF1031_wide"), **attributes)
    case(op, normal(33, 11008), normal(33, 11008), tier=Tier.FULL, label=label("T33xF11008"), **attributes)
    case(op, normal(2, 3, 17), normal(2, 3, 17), label=label("S2xT3xF17"), **attributes)
    case(op, normal(5, 17), normal(17), label=label("broadcast"), **attributes)
    case(op, normal(0, 4), normal(0, 4), label=label("empty"), **attributes)
    for layout in VIEWS:
        case(op, normal(5, 65), normal(5, 65), layout=layout, label=label(layout.value), **attributes)
    steep = floats([-100.0, 88.0, 0.0, -5.0, -20.0, -88.0, 60.0, 1e-4])
    case(op, steep, floats(np.arange(1.0, 9.0)), label=label("steep"), special=True, **attributes)
    case(op, special_pair(0), special_pair(1), label=label("specials"), special=True, **attributes)
    case(op, Patterns(PATTERNS), Patterns(PATTERNS), label=label("patterns"), special=True, **attributes)


_gated("silu_and_mul")
_gated("gelu_and_mul", "erf", approximate="none")
_gated("gelu_and_mul", "tanh", approximate="tanh")
