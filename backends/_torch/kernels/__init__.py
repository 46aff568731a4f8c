"""Kernels in plain torch, one module per op family, for every device that torch can address."""

from __future__ import annotations

from . import (
    attention,
    contraction,
    convolution,
    division,
    elementwise,
    indexing,
    latent,
    moe,
    movement,
    nn,
    pooling,
    product,
    quantization,
    recurrent,
    reduction,
    sampling,
    transcendental,
)
from .registry import TORCH_KERNELS

__all__ = [
    "TORCH_KERNELS",
    "attention",
    "contraction",
    "convolution",
    "division",
    "elementwise",
    "indexing",
    "latent",
    "moe",
    "movement",
    "nn",
    "pooling",
    "product",
    "quantization",
    "recurrent",
    "reduction",
    "sampling",
    "transcendental",
]
