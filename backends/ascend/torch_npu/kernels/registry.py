"""Which kernels a generation has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xinheng.core.hal import KernelRegistry

from .atb import register_atb
from .attention import register_attention
from .cache import register_cache
from .latent import register_latent
from .moe import register_moe
from .nn import register_nn
from .quantization import register_quantization
from .sampling import register_sampling
from .tiled import register_tiled
from .varlen import register_varlen

if TYPE_CHECKING:
    from ..device import AscendDevice


def register_kernels(kernels: KernelRegistry, device: AscendDevice) -> None:
    """Enter the kernels that the generation of a device has."""
    chip = device.chip
    if chip.fused or chip.atb:
        register_nn(kernels, chip)
    if chip.fused:
        register_cache(kernels)
        register_attention(kernels, device)
        register_latent(kernels, device)
        register_quantization(kernels, device.fast)
        register_moe(kernels)
    if chip.sampling:
        register_sampling(kernels, device)
    if chip.atb:
        register_tiled(kernels)
        register_atb(kernels, device)
        register_varlen(kernels, device)
