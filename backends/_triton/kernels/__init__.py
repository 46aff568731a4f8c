"""The kernels, one module per op family as in `xinheng.core.ops`."""

from __future__ import annotations

from . import (
    attention,
    cache,
    contraction,
    gated,
    linear,
    moe,
    norm,
    quantization,
    rotary,
    sampling,
    weights,
)
from .registry import TRITON_KERNELS

__all__ = [
    "TRITON_KERNELS",
    "attention",
    "cache",
    "contraction",
    "gated",
    "linear",
    "moe",
    "norm",
    "quantization",
    "rotary",
    "sampling",
    "weights",
]
