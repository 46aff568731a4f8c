"""Kernels that call torch_mlu_ops, one module per op family; what a release lacks is left to plain torch."""

from __future__ import annotations

from .registry import register_kernels

__all__ = ["register_kernels"]
