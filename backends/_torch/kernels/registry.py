"""The registry that the kernels of this folder enter themselves in."""

from __future__ import annotations

from xinheng.core.hal import KernelRegistry

TORCH_KERNELS = KernelRegistry()
