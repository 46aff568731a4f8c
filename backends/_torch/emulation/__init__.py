"""Torch devices written in Python, for vendors whose hardware and packages are not here."""

from __future__ import annotations

from .chip import EmulatedChip
from .double import device_function, require
from .graph import EmulatedGraph
from .runtime import install
from .tensor import EmulatedTensor

__all__ = ["EmulatedChip", "EmulatedGraph", "EmulatedTensor", "device_function", "install", "require"]
