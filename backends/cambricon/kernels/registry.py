"""All kernels of this folder, entered into the registry of a device."""

from __future__ import annotations

from xinheng.core.hal import KernelRegistry

from ..functions import Functions
from . import attention, linear, moe, nn


def register_kernels(kernels: KernelRegistry, functions: Functions) -> None:
    """Enter the kernels for which a release of torch_mlu_ops has the functions."""
    for family in (nn, linear, attention, moe):
        family.register(kernels, functions)
