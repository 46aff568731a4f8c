"""The Acme accelerator as a backend of xinheng: found by its entry point, without a change in xinheng itself.

The card of this example is the memory of this process, so that it runs anywhere; `Card` is where a real one begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xinheng.core import Backend, Capabilities, Device, DeviceInfo, Finding, MemoryStats, dtype
from xinheng.core.errors import DeviceError
from xinheng.core.hal import ANY_ORDER, Arithmetic
from xinheng.core.ir.dtype import cast_to

MEMORY = 2**34


@dataclass(frozen=True, slots=True)
class Card:
    """Memory of the card, which only its kernels read: an address in a real backend, an array in this one."""

    data: np.ndarray[Any, Any]


class AcmeBackend(Backend):
    """Finds and opens the cards of this machine."""

    name = "acme"
    api_version = (1, 0)
    priority = 10

    def probe(self) -> list[DeviceInfo]:
        return [DeviceInfo("acme:0", "Acme A1", MEMORY, "driver 1.0")]

    def open(self, spec: Any, options: Any = None) -> Device:
        if spec.ordinals not in ((), (0,)) or spec.word or spec.runtime:
            raise DeviceError(f"device {spec} does not exist; there is one card, acme:0")
        return AcmeDevice()

    def diagnose(self) -> list[Finding]:
        """Why there is no card, if there is none; `xinheng devices` prints it."""
        return []


class AcmeDevice(Device):
    """One card: its memory, and the kernels that run on it."""

    def __init__(self) -> None:
        from .kernels import KERNELS

        self.spec, self.name, self.kernels = "acme:0", "Acme A1", KERNELS
        self.capabilities = Capabilities(
            dtypes=frozenset(map(dtype, ("float32", "int32", "bool"))),
            # what error bounds are computed from: float32 throughout, sums in any order, exp and tanh good to 4 ulp
            arithmetic=Arithmetic(depth=ANY_ORDER),
        )

    def upload(self, array: Any, dtype: Any) -> Card:
        return Card(np.array(array if array.dtype == dtype.numpy else cast_to(array, dtype)))

    def download(self, buffer: Card) -> Any:
        return buffer.data.copy()

    def prepare(self, source: Any, uses: Any) -> Card:
        return Card(source.unpack(np.float32))

    def layout_of(self, buffer: Card) -> tuple[str, int]:
        return "expanded to float32", buffer.data.nbytes

    def allocate_state(self, type: Any, space: Any) -> Card:
        raise DeviceError(f"{self.spec} has no attention kernel yet, so nothing keeps a {type.kind} state here")

    def shape(self, buffer: Card) -> tuple[int, ...]:
        return buffer.data.shape

    def memory(self) -> MemoryStats:
        return MemoryStats(MEMORY, MEMORY)
