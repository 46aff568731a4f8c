"""A device for tests: numpy buffers that are marked as its own, and only the kernels a test gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xinheng.core.errors import DeviceError
from xinheng.core.hal import Buffer, Kernel, KernelRegistry, ReferenceDevice
from xinheng.core.ir import DType
from xinheng.core.ops import OPSET

REFERENCE = ReferenceDevice()


@dataclass(slots=True)
class Held:
    """A buffer of a toy device, which no other device understands."""

    device: str
    array: np.ndarray[Any, Any]


class Toy(ReferenceDevice):
    """A device whose kernels a test registers; it counts the transfers."""

    def __init__(self, *ops: str, spec: str = "toy:0") -> None:
        super().__init__(spec, "a toy")
        self.kernels = KernelRegistry()
        self.uploads = self.downloads = self.waits = 0
        for op in ops:
            self.kernels.register(OPSET[op], name=f"toy_{op}")(ByReference(self, op))

    def upload(self, array: np.ndarray[Any, Any], dtype: DType) -> Buffer:
        self.uploads += 1
        return Held(self.spec, super().upload(array, dtype))

    def download(self, buffer: Buffer) -> Any:
        self.downloads += 1
        return self.open(buffer)

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        return tuple(self.open(buffer).shape)

    def synchronize(self) -> None:
        self.waits += 1

    def open(self, buffer: Any) -> Any:
        """The array in a buffer of this device, which anything but None and a number has to be."""
        if buffer is None or isinstance(buffer, int | float):
            return buffer
        if not isinstance(buffer, Held) or buffer.device != self.spec:
            raise DeviceError(f"{self.spec} is given a buffer that is not its own: {buffer!r}")
        return buffer.array


class ByReference:
    """A kernel that opens the buffers of a toy device and computes by the reference."""

    def __init__(self, device: Toy, op: str) -> None:
        self.device, self.op, self.__name__ = device, op, f"toy_{op}"

    def plan(self, node: Any, bounds: Any) -> Any:
        kernel: Kernel = REFERENCE.kernels.candidates(self.op)[0]
        run = kernel.function.plan(node, bounds)

        def call(*operands: Any, **attributes: Any) -> Any:
            made = run(*map(self.device.open, operands), **attributes)
            return (
                tuple(Held(self.device.spec, x) for x in made)
                if isinstance(made, tuple)
                else Held(self.device.spec, made)
            )

        return call
