"""A torch device with memory and a queue of its own: what CUDA, Ascend, Cambricon and others have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError, OutOfMemory
from xinheng.core.hal import (
    Buffer,
    Capabilities,
    Event,
    Executable,
    HostCopy,
    KernelExecutable,
    KernelRegistry,
    MemoryStats,
    Placement,
    WeightSource,
)
from xinheng.core.ir.dtype import DType, from_numpy
from xinheng.core.ir.graph import Graph

from .capture import Record, captured
from .device import TorchDevice
from .distributed import DistributedCommunicator
from .handles import array_of
from .kernels import TORCH_KERNELS
from .kernels.by_token import register_by_token
from .kernels.collective import register_collectives
from .kernels.movement import register_makers
from .preparation import prepared


class AcceleratorDevice(TorchDevice):
    """One card, driven through the module `torch.<type>` that its framework brings.

    Kernels return before they are done: `event`, `synchronize`, `copy_async` and `download` wait for the queue.
    Subclasses add kernels of their own to `kernels`, whose parents are those of plain torch.
    """

    def __init__(
        self,
        spec: str,
        name: str,
        device: torch.device,
        capabilities: Capabilities,
        collective: str = "gloo",
        graph: str | None = None,
    ) -> None:
        """Open a card that is there.

        Args:
            collective: what `torch.distributed` calls the vendor's collective library.
            graph: the class of captured graphs in the vendor's module, such as CUDAGraph; None to capture nothing.
        """
        super().__init__(spec, name, device, capabilities)
        self._collective, self._graph_class = collective, graph
        self.record: Record | None = None
        """The graph that is being captured, or that is about to be replayed."""
        self.runtime: Any = torch.get_device_module(device)
        self.runtime.set_device(device)
        self.kernels = KernelRegistry(_plain(self))
        self._pins = _pins()

    def upload(self, array: NDArray[Any], dtype: DType) -> Buffer:
        try:
            return super().upload(array, dtype)
        except RuntimeError as error:
            raise self._explained(error, f"{dtype} {list(array.shape)}") from error

    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        return prepared(self, source)

    def host_tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """An array of any of our dtypes as a tensor of the host over the same memory."""
        return self._tensor(array, from_numpy(array.dtype))

    def compile(self, graph: Graph, placement: Placement, bounds: Mapping[str, int]) -> Executable:
        plain = KernelExecutable(graph, self, placement, bounds)
        return plain if self._graph_class is None else captured(self, plain, getattr(self.runtime, self._graph_class))

    def capturing(self, graph: Any) -> AbstractContextManager[None]:
        """What is given to the device inside goes into a graph of the vendor's class."""
        context: AbstractContextManager[None] = self.runtime.graph(graph)
        return context

    def synchronize(self) -> None:
        try:
            self.runtime.synchronize(self.device)
        except RuntimeError as error:
            raise DeviceError(f"{self.spec}: work given to the device failed: {error}") from error

    def event(self) -> Event:
        return QueueEvent(self)

    def copy_async(self, buffer: Buffer) -> HostCopy:
        tensor: torch.Tensor = buffer.detach()
        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pins)
        target.copy_(tensor, non_blocking=True)
        return QueueCopy(target, QueueEvent(self))

    def crop(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> Buffer:
        return buffer[tuple(map(slice, shape))]

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        return self._zeros(shape, self._tensor(np.zeros((), dtype.numpy), dtype).dtype)

    def memory(self) -> MemoryStats:
        """Total and available bytes; what the framework holds in reserve for this process is available."""
        free, total = self.runtime.mem_get_info(self.device)
        reserved, used = (getattr(self.runtime, f"memory_{what}", None) for what in ("reserved", "allocated"))
        spare = reserved(self.device) - used(self.device) if reserved and used else 0
        return MemoryStats(int(total), int(free + max(spare, 0)))

    def out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError | torch.OutOfMemoryError) or "out of memory" in str(error).lower()

    def join(self, group: str, rank: int, size: int, address: str) -> None:
        self.connect(group, DistributedCommunicator(self._collective, rank, size, address))

    def close(self) -> None:
        self.runtime.empty_cache()

    def _explained(self, error: RuntimeError, what: str) -> DeviceError:
        """The error of a failed allocation or copy; one of memory says how much there is."""
        if not self.out_of_memory(error):
            return DeviceError(f"{self.spec}: {what} cannot be brought to the device: {error}")
        memory = self.memory()
        return OutOfMemory(
            f"{self.spec}: no room for {what}: {memory.available >> 20} of {memory.total >> 20} MiB are free; "
            "use a smaller model, a narrower weight scheme, or lower engine.cache_memory"
        )


def _plain(device: AcceleratorDevice) -> KernelRegistry:
    """The kernels of plain torch, with those that make tensors on a device or reach its groups."""
    kernels = KernelRegistry(TORCH_KERNELS)
    register_makers(kernels, device.device)
    register_collectives(kernels, device)
    arithmetic = device.capabilities.arithmetic
    if arithmetic is not None and arithmetic.determinism in ("D3", "D4"):
        register_by_token(kernels)
    return kernels


def _pins() -> bool:
    """Whether the framework can give memory that the device copies to while the host goes on."""
    try:
        torch.empty(1, pin_memory=True)
    except (RuntimeError, NotImplementedError):
        return False
    return True


class QueueEvent:
    """A point in the queue of a device."""

    def __init__(self, device: AcceleratorDevice) -> None:
        self._spec = device.spec
        self._event: Any = device.runtime.Event()
        self._event.record(device.runtime.current_stream(device.device))

    def wait(self) -> None:
        try:
            self._event.synchronize()
        except RuntimeError as error:
            raise DeviceError(f"{self._spec}: work given to the device failed: {error}") from error


class QueueCopy:
    """A copy to pinned memory behind what was given to a queue."""

    def __init__(self, target: torch.Tensor, event: QueueEvent) -> None:
        self._target, self._event, self._done = target, event, False

    def wait(self) -> NDArray[Any]:
        self._event.wait()
        self._done = True
        return self.array

    @property
    def array(self) -> NDArray[Any]:
        if not self._done:
            raise DeviceError("a copy is read before it is complete; wait for it")
        return array_of(self._target)
