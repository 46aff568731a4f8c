"""The kernels and the registry of a card on tensors of the host, the Triton kernels run by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xinheng.core.hal import Buffer, Capabilities, DeviceOptions, MemoryStats, WeightSource
from xinheng.core.hal.host import host_memory

from .._torch import TorchDevice
from .._torch.preparation import prepared
from .._triton.interpreter import demand

SPEC = "cuda:interpreted"
CAPABILITY = (9, 0)
"""The card that it stands for."""


class InterpretedDevice(TorchDevice):
    """`cuda:interpreted`; slow, and for proofs: it runs what a card would, one program after the other."""

    def __init__(self, options: DeviceOptions) -> None:
        demand(True, SPEC)
        from .device import dtypes_of
        from .kernels import arithmetic_of, kernels_of

        fast, place = options.numerics.mode == "fast", torch.device("cpu")
        capabilities = Capabilities(
            dtypes_of(CAPABILITY),
            unified_memory=True,
            arithmetic=arithmetic_of(fast),
            cache_schemes=frozenset({"int8"}),
        )
        super().__init__(SPEC, "Triton kernels, interpreted on the processor", place, capabilities)
        self.kernels = kernels_of(self, place, fast)

    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        return prepared(self, source)

    def memory(self) -> MemoryStats:
        return host_memory()
