"""Huawei Ascend. This release has one runtime for it: MindSpore on its CPU target, which needs no card."""

from __future__ import annotations

from .backend import AscendBackend

__all__ = ["AscendBackend"]
