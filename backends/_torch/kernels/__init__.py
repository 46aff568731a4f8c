"""Kernels in plain torch, one module per op family, for every device that torch can address."""

from __future__ import annotations

from . import attention, contraction, elementwise, movement, nn, reduction, sampling
from .registry import TORCH_KERNELS

__all__ = ["TORCH_KERNELS", "attention", "contraction", "elementwise", "movement", "nn", "reduction", "sampling"]
