"""The CPU where no native kernels can be had: a torch device like any other."""

from __future__ import annotations

import torch

from xinheng.core.hal import ANY_ORDER, Arithmetic, Capabilities, DeviceOptions, MemoryStats
from xinheng.core.hal.host import host_memory

from .._torch import TorchDevice
from .._torch.handles import DTYPES
from .device import threads_of
from .processor import processor_name
from .torch_kernels import torch_registry

ARITHMETIC = Arithmetic(ANY_ORDER, determinism="D2")
"""Libraries below torch choose the order by the size of a product."""


class TorchCPUDevice(TorchDevice):
    """`cpu:0` with torch kernels only; `why` there are no others stands in every receipt."""

    def __init__(self, options: DeviceOptions, why: str) -> None:
        known = Capabilities(
            frozenset(DTYPES),
            block_sizes=(16, 32, 64, 128),
            unified_memory=True,
            arithmetic=ARITHMETIC,
            cache_schemes=frozenset({"int8"}),
        )
        super().__init__("cpu:0", processor_name(), torch.device("cpu"), known)
        self._notes = (why,)
        self.threads = threads_of(options)
        torch.set_num_threads(self.threads)
        self.kernels = torch_registry(self)

    def notes(self) -> tuple[str, ...]:
        return self._notes

    def memory(self) -> MemoryStats:
        return host_memory()
