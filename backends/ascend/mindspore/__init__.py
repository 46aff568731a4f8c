"""MindSpore as a runtime, today on its CPU target. Importing this imports mindspore, and no torch."""

from __future__ import annotations

from .device import MindSporeDevice
from .handles import MindSporePagedKV, MindSporePagedLatent, MindSporeSequenceState, MindSporeWeight
from .kernels import MINDSPORE_KERNELS

__all__ = [
    "MINDSPORE_KERNELS",
    "MindSporeDevice",
    "MindSporePagedKV",
    "MindSporePagedLatent",
    "MindSporeSequenceState",
    "MindSporeWeight",
]
