"""Cases of norms and activations that quantise."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import float8_e4m3fn, float8_e5m2, float32, int8, int16

from ..case import case
from ..draw import EVERY
from ..operands import Special, floats, gain, normal, special_rows
from .sizes import BATCHES, VIEWS

_KINDS = (int8, int16, float8_e4m3fn, float8_e5m2)
_FLAT = tuple(data for data in EVERY if data != "offset")

for _kind in _KINDS:
    _how: dict[str, Any] = {"dtype": _kind}
    for _hidden in (1, 33, 129):
        _row = normal(3, _hidden), normal(3, _hidden)
        _label = f"{_kind.name}_T3xD{_hidden}"
        case("add_rms_norm_quant", *_row, gain(_hidden), eps=1e-6, label=_label, **_how)
        case("silu_and_mul_quant", normal(3, _hidden, scale=3), normal(3, _hidden), label=_label, **_how)
    _label = f"{_kind.name}_T7xD320"
    case("add_rms_norm_quant", normal(7, 320), normal(7, 320), gain(320), eps=1e-5, label=_label, data=EVERY, **_how)
    case("silu_and_mul_quant", normal(7, 320), normal(7, 320), label=_label, data=_FLAT, **_how)
for _tokens in BATCHES:
    _row = normal(_tokens, 576), normal(_tokens, 576)
    case("add_rms_norm_quant", *_row, gain(576), eps=1e-6, label=f"T{_tokens}xD576")
    case("silu_and_mul_quant", *_row, label=f"T{_tokens}xF576")
for _eps, _scale in ((1e-6, 1e-3), (1e-5, 3e-3)):
    _row = normal(5, 320, scale=_scale), normal(5, 320, scale=_scale)
    case("add_rms_norm_quant", *_row, gain(320), eps=_eps, label=f"T5xD320_eps-{_eps}", seeds=(2, 8))
case("add_rms_norm_quant", normal(2, 2, 9), normal(2, 2, 9), gain(9), eps=1e-5, label="S2xT2xD9")
case("add_rms_norm_quant", normal(0, 9), normal(0, 9), gain(9), eps=1e-5, label="empty")
case("silu_and_mul_quant", normal(0, 4), normal(0, 4), label="empty")
case("silu_and_mul_quant", normal(2, 2, 9), normal(2, 2, 9), label="S2xT2xF9")
_ZEROS = floats([[0.0] * 5, [1.0, -2.0, 0.5, 0.0, 3.0]])
case("silu_and_mul_quant", _ZEROS, floats([[1.0] * 5, [0.0] * 5]), label="zero-rows")
_SOME = floats([[0.0] * 5, [1.0, -2.0, 0.5, 0.25, 3.0], [2.0, 1.5, -4.0, 1.0, 0.5]])
case("add_rms_norm_quant", _SOME, floats([[0.0] * 5] * 3), gain(5), eps=1e-5, label="zero-row")
_LOUD, _SAME = special_rows(9), gain(63, 9)  # only floats have codes for what is no number
case("add_rms_norm_quant", _LOUD, _SAME, gain(9), eps=1e-5, dtype=float8_e5m2, label="specials", special=True)
# half of what float32 can hardly hold may be nothing, and then the row is one of zeros, whose scale is 1
_HELD = Special(lambda s: special_rows(9).layout(np.where(np.abs(s) < float32.smallest_normal, 0.0, s)))
case("silu_and_mul_quant", _HELD, _SAME, dtype=float8_e5m2, label="specials", special=True)
for _layout in VIEWS:
    _row = normal(5, 33), normal(5, 33)
    case("add_rms_norm_quant", *_row, gain(33), eps=1e-5, layout=_layout, label=_layout.value)
    case("silu_and_mul_quant", *_row, layout=_layout, label=_layout.value)
