"""The runtime torch_npu: Ascend cards, and their emulation, as devices of torch."""

from __future__ import annotations

from .device import AscendDevice

__all__ = ["AscendDevice"]
