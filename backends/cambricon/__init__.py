"""Cambricon MLU cards through torch_mlu and torch_mlu_ops, and emulations of MLU370 and MLU590."""

from __future__ import annotations

from .backend import CambriconBackend

__all__ = ["CambriconBackend"]
