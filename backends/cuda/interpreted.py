"""The kernels and the registry of a card on tensors of the host, the Triton kernels run by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xinheng.core.hal import ANY_ORDER, Arithmetic, Buffer, Capabilities, DeviceOptions, MemoryStats, WeightSource
from xinheng.core.hal.host import host_memory

from .._torch import TorchDevice
from .._torch.handles import DTYPES
from .._triton.interpreter import demand
from .._triton.weights import prepared

SPEC = "cuda:interpreted"
LEFT_OUT = ("float64", "uint64", "float8_e4m3fnuz", "float8_e5m2fnuz")
STRICT = Arithmetic(ANY_ORDER, determinism="D4")


class InterpretedDevice(TorchDevice):
    """`cuda:interpreted`; slow, and for proofs: it runs what a card of the newest generation would."""

    def __init__(self, options: DeviceOptions) -> None:
        demand(True, SPEC)
        from .kernels import kernels_of

        dtypes = frozenset(kind for kind in DTYPES if kind.name not in LEFT_OUT)
        capabilities = Capabilities(dtypes, unified_memory=True, arithmetic=STRICT)
        super().__init__(SPEC, "the Triton kernels, interpreted", torch.device("cpu"), capabilities)
        self.kernels = kernels_of(self, self.device)

    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        return prepared(source, self.upload)

    def layout_of(self, buffer: Buffer) -> tuple[str, int]:
        return buffer.layout, buffer.nbytes

    def memory(self) -> MemoryStats:
        return host_memory()
