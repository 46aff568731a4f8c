"""The CPU: torch kernels, and native kernels that are compiled on this machine."""

from __future__ import annotations

from .backend import CPUBackend

__all__ = ["CPUBackend"]
