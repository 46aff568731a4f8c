"""NVIDIA GPUs: torch and Triton kernels; without a card, the Triton kernels interpreted on the host."""

from __future__ import annotations

from .backend import CUDABackend

__all__ = ["CUDABackend"]
