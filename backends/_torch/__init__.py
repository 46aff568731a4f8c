"""What all backends built on torch share: device memory, handles, and kernels in plain torch. Not itself a backend."""

from __future__ import annotations

import os

# torch imports every installed device plugin by itself, and one with an incomplete SDK then breaks `import torch`.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

from .accelerator import AcceleratorDevice
from .device import TorchDevice
from .handles import TorchPagedKV, TorchPagedLatent, TorchQuantizedKV, TorchSequenceState, TorchWeight, TorchWeightPart
from .kernels import TORCH_KERNELS

__all__ = [
    "TORCH_KERNELS",
    "AcceleratorDevice",
    "TorchDevice",
    "TorchPagedKV",
    "TorchPagedLatent",
    "TorchQuantizedKV",
    "TorchSequenceState",
    "TorchWeight",
    "TorchWeightPart",
]
