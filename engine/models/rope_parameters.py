"""Rotary parameters as configs spell them, read strictly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from xinheng.core.errors import ModelError

from ..layers import Rope
from .fields import Fields

_KNOWN = {
    "default": set[str](),
    "linear": {"factor"},
    "yarn": {"factor", "original_max_position_embeddings"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_OPTIONAL = {"yarn": {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate"}}


def read_rope_parameters(parameters: Mapping[str, Any], theta: float, width: int) -> Rope:
    """Read `rope_parameters` (transformers 5) or `rope_scaling` (4); `theta` holds where they do not say.

    Raises:
        ModelError: the type is unknown, or a key is, since ignoring one gives silently wrong numbers.
    """
    parameters = {key: value for key, value in parameters.items() if value is not None}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if not isinstance(kind, str) or kind not in _KNOWN:
        raise ModelError(f"rope type {kind!r} is not supported; known: {', '.join(_KNOWN)}")
    unknown = set(parameters) - _KNOWN[kind] - _OPTIONAL.get(kind, set()) - _COMMON
    if unknown:
        raise ModelError(f"rope parameters of type {kind!r} have an unknown key {sorted(unknown)[0]!r}")
    missing = _KNOWN[kind] - set(parameters)
    if missing:
        raise ModelError(f"rope parameters of type {kind!r} lack {sorted(missing)[0]!r}")
    fields = Fields(parameters, f"rope parameters of type {kind!r}")
    made = Rope(
        theta=fields.number("rope_theta", default=theta),
        width=int(width * fields.number("partial_rotary_factor", default=1.0)),
        kind=kind,
        factor=fields.number("factor", default=1.0),
        low_freq_factor=fields.number("low_freq_factor", default=1.0),
        high_freq_factor=fields.number("high_freq_factor", default=4.0),
        original_max_position=fields.size("original_max_position_embeddings", default=8192),
        **(_yarn(fields) if kind == "yarn" else {}),
    )
    sound = made.theta > 1 and made.factor > 0 and made.low_freq_factor < made.high_freq_factor
    if not sound or not 0 < made.width <= width or made.width % 2:
        raise ModelError(f"{fields.where}: {dict(parameters)} give impossible frequencies for a width of {width}")
    return made


def _yarn(fields: Fields) -> dict[str, Any]:
    factor = fields.number("factor")

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    part, whole = fields.number("mscale", default=0.0), fields.number("mscale_all_dim", default=0.0)
    default = magnitude(part) / magnitude(whole) if part and whole else magnitude(1.0)
    return {
        "beta_fast": fields.number("beta_fast", default=32.0),
        "beta_slow": fields.number("beta_slow", default=1.0),
        "truncate": fields.flag("truncate", default=True),
        "magnitude": fields.number("attention_factor", default=default),
        "softmax_magnitude": magnitude(whole) if whole else 1.0,
    }
