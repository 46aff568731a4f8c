"""Huawei Ascend: cards by torch_npu, emulations of three generations, and MindSpore on its CPU target."""

from __future__ import annotations

from .backend import AscendBackend

__all__ = ["AscendBackend"]
