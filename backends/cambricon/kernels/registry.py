"""All kernels of this folder, entered into the registry of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import attention, latent, linear, moe, nn, sampling

if TYPE_CHECKING:
    from ..device import CambriconDevice


def register_kernels(device: CambriconDevice) -> None:
    """Enter the kernels for which the release of torch_mlu_ops has the functions."""
    for family in (nn, linear, attention, latent, moe, sampling):
        family.register(device.kernels, device)
