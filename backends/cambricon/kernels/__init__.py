"""Kernels that call torch_mlu_ops, one module per op family; what a release lacks is left to plain torch."""

from __future__ import annotations

from xinheng.core.hal import KernelRegistry

from ..functions import Functions
from . import attention, linear, moe, nn


def register_kernels(kernels: KernelRegistry, functions: Functions) -> None:
    """Enter the kernels for which a release of torch_mlu_ops has the functions."""
    for family in (nn, linear, attention, moe):
        family.register(kernels, functions)


__all__ = ["register_kernels"]
