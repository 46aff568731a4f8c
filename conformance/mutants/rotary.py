"""Mutants of rotary position embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ir.dtype import bfloat16, float16, float32, round_to
from xinheng.core.ops import OPSET

from .mutant import faulty, given, having, operand, saying

reference = OPSET["rotary_embedding"].reference


def _pairing(call: Any) -> Any:
    return saying(call, interleaved=not call.attributes.get("interleaved", False))


def _tables(change: Any) -> Any:
    return lambda call: having(call, cos=change(operand(call, "cos")), sin=change(operand(call, "sin")))


given(
    "rotary_embedding kv_norm_rope_cache", "pairing", "pairs neighbours for halves, or halves for neighbours", _pairing
)
given(
    "rotary_embedding kv_norm_rope_cache",
    "sign",
    "turns the other way",
    lambda call: having(call, sin=-operand(call, "sin")),
)
given(
    "rotary_embedding kv_norm_rope_cache",
    "cos and sin exchanged",
    "takes the sines for the cosines",
    lambda call: having(call, cos=operand(call, "sin"), sin=operand(call, "cos")),
)
given(
    "rotary_embedding",
    "tables in bf16",
    "keeps the tables in bfloat16",
    _tables(lambda t: round_to(t, bfloat16)),
    (float32, float16),
)
given(
    "rotary_embedding",
    "tables in f16",
    "keeps the tables in float16",
    _tables(lambda t: round_to(t, float16)),
    (float32,),
)
given(
    "rotary_embedding kv_norm_rope_cache",
    "positions + 1",
    "reads the tables of the token after",
    _tables(lambda t: np.roll(t, -1, axis=0)),
)


def _rotated(x: Any, cos: Any, sin: Any, *, interleaved: bool = False, fault: str) -> Any:
    width = 2 * cos.shape[-1]
    first, rest = x[..., :width], x[..., width:]
    if fault == "last part" and rest.shape[-1]:
        start = x.shape[-1] - width
        turned = reference(x[..., start:], cos, sin, interleaved=interleaved)
        return np.concatenate([x[..., :start], turned], axis=-1)
    if fault == "rest zeroed":
        turned = reference(first, cos, sin, interleaved=interleaved)
        return np.concatenate([turned, rest * 0], axis=-1)
    if fault == "halves of the whole width":
        half, whole = cos.shape[-1], x.shape[-1] // 2
        a, b = x[..., :half], x[..., whole : whole + half]
        c, s = np.expand_dims(cos, 1), np.expand_dims(sin, 1)
        parts = [a * c - b * s, x[..., half:whole], b * c + a * s, x[..., whole + half :]]
        turned = np.concatenate(parts, axis=-1)
        return reference(x, cos, sin, interleaved=True) if interleaved else turned
    if fault == "first head only":
        turned = reference(x[:, :1], cos, sin, interleaved=interleaved)
        return np.concatenate([turned, x[:, 1:]], axis=1)
    first_row = (np.broadcast_to(t[:1], t.shape) for t in (cos, sin))
    return reference(x, *first_row, interleaved=interleaved)


_FAULTS = {
    "last part": "turns the last elements of a head instead of the first",
    "rest zeroed": "writes zeros where elements pass through",
    "halves of the whole width": "pairs elements half a head apart where only a part is turned",
    "first head only": "turns the first head only",
    "one position": "takes the position of the first token for all",
}
faulty("rotary_embedding", _rotated, _FAULTS)
