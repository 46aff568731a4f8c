"""Rotary frequencies, and their cos and sin tables in a graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.errors import ModelError
from xinheng.core.ir import Value
from xinheng.core.ir.dtype import float32


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding: base, rotated width, and how its frequencies are scaled.

    `kind` is default, linear (position interpolation, Chen et al. 2023), llama3 (the piecewise scaling of Llama 3.1) or
    yarn (Peng et al. 2023). `magnitude` multiplies cos and sin; `softmax_magnitude` is what DeepSeek's attention scale
    is multiplied with, twice.
    """

    theta: float
    width: int
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    magnitude: float = 1.0
    softmax_magnitude: float = 1.0

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
        elif self.kind == "yarn":
            inverse = self._yarn(inverse)
        return inverse.astype(np.float32)

    def _llama3(self, inverse: NDArray[np.float64]) -> NDArray[np.float64]:
        """Long wavelengths are stretched by `factor`, short ones kept, those between are blended."""
        wavelength = 2 * math.pi / inverse
        low, high = self.low_freq_factor, self.high_freq_factor
        blend = np.clip((self.original_max_position / wavelength - low) / (high - low), 0.0, 1.0)
        return (1 - blend) * inverse / self.factor + blend * inverse

    def _yarn(self, inverse: NDArray[np.float64]) -> NDArray[np.float64]:
        """Frequencies that turn often over the original context are kept, rare ones stretched, the others blended."""

        def turning(rotations: float) -> float:
            span = math.log(self.original_max_position / (rotations * 2 * math.pi))
            return self.width * span / (2 * math.log(self.theta))

        low, high = turning(self.beta_fast), turning(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.width - 1)
        high = high + 0.001 if low == high else high
        ramp = np.clip((np.arange(inverse.size) - low) / (high - low), 0.0, 1.0)
        return inverse / self.factor * ramp + inverse * (1 - ramp)


def rope_tables(positions: Value, frequencies: NDArray[np.float32], magnitude: float = 1.0) -> tuple[Value, Value]:
    """cos and sin of position times frequency, times `magnitude`, each float32 [tokens, width / 2]."""
    column = ops.reshape(ops.cast(positions, dtype=float32), shape=(positions.shape[0], 1))
    angles = ops.mul(column, positions.builder.constant(frequencies[None, :]))
    cos, sin = ops.cos(angles), ops.sin(angles)
    return (cos, sin) if magnitude == 1.0 else (ops.mul(cos, magnitude), ops.mul(sin, magnitude))
