"""The kernels of a CUDA device: Triton's, those of torch for what is left, and what depends on the device."""

from __future__ import annotations

import torch

from xinheng.core.hal import Device, KernelRegistry

from .._torch.kernels.collective import register_collectives
from .._torch.kernels.movement import register_makers
from .._triton.kernels import TRITON_KERNELS
from .unsigned import register_unsigned


def kernels_of(device: Device, place: torch.device) -> KernelRegistry:
    """The registry of one device, whose tensors lie at `place`."""
    registry = KernelRegistry(TRITON_KERNELS)
    register_makers(registry, place)
    register_collectives(registry, device)
    register_unsigned(registry)
    return registry
