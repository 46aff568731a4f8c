"""Attention libraries of others, taken where they are installed and the mode admits their rounding and order."""

from __future__ import annotations

from importlib.util import find_spec

from xinheng.core.hal import KernelRegistry


def register_providers(registry: KernelRegistry) -> None:
    """Enter the kernels of the libraries that can be imported, before all others."""
    if find_spec("flashinfer") is not None:
        from .flashinfer import register_flashinfer

        register_flashinfer(registry)
    if find_spec("flash_attn") is not None:
        from .flash_attn import register_flash_attn

        register_flash_attn(registry)
