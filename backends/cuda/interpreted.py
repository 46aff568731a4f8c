"""The kernels and the registry of a card on tensors of the host, the Triton kernels run by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xinheng.core.hal import Buffer, Capabilities, DeviceOptions, MemoryStats, WeightSource, converted
from xinheng.core.hal.host import host_memory

from .._torch import TorchDevice, TorchWeight
from .._torch.plane_part import plane_part
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
        capabilities = Capabilities(dtypes_of(CAPABILITY), unified_memory=True, arithmetic=arithmetic_of(fast))
        super().__init__(SPEC, "Triton kernels, interpreted on the processor", place, capabilities)
        self.kernels = kernels_of(self, place, fast)

    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        held, how = converted(source, self.capabilities.dtypes, self.spec)
        parts = tuple(plane_part(part, held.shape[-1], self.upload) for part in held.parts)
        planes = any(not part.dense for part in parts)
        return TorchWeight(held.shape, parts, how or ("planes of codes and scales" if planes else "as stored"))

    def memory(self) -> MemoryStats:
        return host_memory()
