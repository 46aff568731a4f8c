"""Rotary frequencies: read from a config in either spelling, and as cos and sin tables in a graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.errors import ModelError
from xinheng.core.ir import Value
from xinheng.core.ir.dtype import float32

from .fields import Fields

_KNOWN = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding: base, rotated width, and how its frequencies are scaled.

    `kind` is default, linear (position interpolation, Chen et al. 2023) or llama3 (the piecewise scaling of Llama 3.1).
    """

    theta: float
    width: int
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    @classmethod
    def read(cls, parameters: Mapping[str, Any], theta: float, width: int) -> Rope:
        """Read `rope_parameters` (transformers 5) or `rope_scaling` (4); `theta` holds where they do not say.

        Raises:
            ModelError: the type is unknown, or a key is, since ignoring one gives silently wrong numbers.
        """
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        if kind not in _KNOWN:
            raise ModelError(f"rope type {kind!r} is not supported; known: {', '.join(_KNOWN)}")
        unknown = set(parameters) - _KNOWN[kind] - _COMMON
        if unknown:
            raise ModelError(f"rope parameters of type {kind!r} have an unknown key {sorted(unknown)[0]!r}")
        missing = _KNOWN[kind] - set(parameters)
        if missing:
            raise ModelError(f"rope parameters of type {kind!r} lack {sorted(missing)[0]!r}")
        fields = Fields(parameters, f"rope parameters of type {kind!r}")
        made = cls(
            theta=fields.number("rope_theta", default=theta),
            width=int(width * fields.number("partial_rotary_factor", default=1.0)),
            kind=kind,
            factor=fields.number("factor", default=1.0),
            low_freq_factor=fields.number("low_freq_factor", default=1.0),
            high_freq_factor=fields.number("high_freq_factor", default=4.0),
            original_max_position=fields.size("original_max_position_embeddings", default=8192),
        )
        if made.theta <= 0 or made.factor <= 0 or not 0 < made.width <= width or made.width % 2:
            raise ModelError(f"{fields.where}: {dict(parameters)} give impossible frequencies for a width of {width}")
        return made

    def frequencies(self, factors: NDArray[Any] | None = None) -> NDArray[np.float32]:
        """Angle per position, float32 [width / 2]; `factors` (from a GGUF file) divide them."""
        inverse = self.theta ** (-np.arange(0, self.width, 2, dtype=np.float64) / self.width)
        if factors is not None:
            if factors.shape != inverse.shape:
                raise ModelError(
                    f"rope factors have shape {list(factors.shape)}, the width asks for {list(inverse.shape)}"
                )
            inverse = inverse / factors.astype(np.float64)
        if self.kind == "linear":
            inverse = inverse / self.factor
        elif self.kind == "llama3":
            inverse = self._llama3(inverse)
        return inverse.astype(np.float32)

    def _llama3(self, inverse: NDArray[np.float64]) -> NDArray[np.float64]:
        """Long wavelengths are stretched by `factor`, short ones kept, those between are blended."""
        wavelength = 2 * math.pi / inverse
        low, high = self.low_freq_factor, self.high_freq_factor
        blend = np.clip((self.original_max_position / wavelength - low) / (high - low), 0.0, 1.0)
        return (1 - blend) * inverse / self.factor + blend * inverse


def rope_tables(positions: Value, frequencies: NDArray[np.float32]) -> tuple[Value, Value]:
    """cos and sin of position times frequency, each float32 [tokens, width / 2]."""
    column = ops.reshape(ops.cast(positions, dtype=float32), shape=(positions.shape[0], 1))
    angles = ops.mul(column, positions.builder.constant(frequencies[None, :]))
    return ops.cos(angles), ops.sin(angles)
