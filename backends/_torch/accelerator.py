"""A torch device with memory and a queue of its own: what CUDA, Ascend, Cambricon and others have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

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
from xinheng.core.ir.graph import Graph, Value

from .capture import Record, captured, uncaptured
from .device import TorchDevice
from .distributed import DistributedCommunicator
from .handles import array_of
from .kernels import TORCH_KERNELS
from .kernels.by_token import register_by_token
from .kernels.capturable import register_capturable
from .kernels.collective import register_collectives
from .kernels.movement import register_makers
from .preparation import prepared

HOST = "gloo"
"""The collective library of devices that have none of their own: tensors travel through host memory."""


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
        software: str = "the vendor's torch plugin",
        capture: bool = True,
    ) -> None:
        """Open a card that is there.

        Args:
            collective: what `torch.distributed` calls the vendor's collective library.
            graph: the class of captured graphs in the vendor's module, such as CUDAGraph; None to capture nothing.
            capture: whether the user wants steps captured.
            software: what brings this type of device to torch, for advice.
        """
        super().__init__(spec, name, device, capabilities)
        self._software = software
        self.record: Record | None = None
        """The graph that is being captured, or that is about to be replayed."""
        self.runtime: Any = torch.get_device_module(device)
        self.runtime.set_device(device)
        # there is no library of a vendor below an emulation
        self._collective = HOST if getattr(self.runtime, "emulated", False) else collective
        self._new_graph: Any = None if graph is None or not capture else getattr(self.runtime, graph, None)
        self._uncaptured = _reason(self.runtime, graph, capture)
        self._graph: Graph | None = None
        self.readers: dict[str, set[str]] = {}
        """The kernels that read each parameter, by its name, in all graphs so far."""
        self.kernels = KernelRegistry(_plain(self))
        self._pins = _pins()

    def upload(self, array: NDArray[Any], dtype: DType) -> Buffer:
        with self.explaining(f"{dtype} {list(array.shape)}", array.size * dtype.bits // 8):
            return super().upload(array, dtype)

    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        return prepared(self, source)

    def host_tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """An array of any of our dtypes as a tensor of the host over the same memory."""
        return self._tensor(array, from_numpy(array.dtype))

    def compile(self, graph: Graph, placement: Placement, bounds: Mapping[str, int]) -> Executable:
        for node, choice in zip(graph.nodes, placement, strict=True):
            for value in node.operands:
                if value is not None and value.kind == "parameter":
                    self.readers.setdefault(value.name, set()).add(choice.kernel.name)
        self._graph = graph
        try:
            plain = KernelExecutable(graph, self, placement, bounds)
        finally:
            self._graph = None
        if self._new_graph is not None:
            return captured(self, plain, self._new_graph)
        return plain if self._uncaptured is None else uncaptured(plain, self._uncaptured)

    def reads(self, value: Value) -> bool:
        """Whether the graph whose kernels are being planned reads a value; True for all where there is none."""
        if self._graph is None:
            return True
        operands = (operand for node in self._graph.nodes for operand in node.operands)
        return any(other is value for other in (*operands, *self._graph.outputs.values()))

    @property
    def captures(self) -> bool:
        """Whether steps may be captured."""
        return self._new_graph is not None

    def capturing(self, graph: Any) -> AbstractContextManager[None]:
        """What is given to the device inside goes into a graph of the vendor's class."""
        context: AbstractContextManager[None] = self.runtime.graph(graph)
        return context

    def synchronize(self) -> None:
        with self.working():
            self.runtime.synchronize(self.device)

    def event(self) -> Event:
        return QueueEvent(self)

    def copy_async(self, buffer: Buffer) -> HostCopy:
        tensor: torch.Tensor = buffer.detach()
        with self.working():
            target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pins)
            target.copy_(tensor, non_blocking=True)
            return QueueCopy(target, QueueEvent(self))

    def download(self, buffer: Buffer) -> NDArray[Any]:
        with self.working():
            return super().download(buffer)

    def crop(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> Buffer:
        return buffer[tuple(map(slice, shape))]

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        kind = self._tensor(np.zeros((), dtype.numpy), dtype).dtype
        with self.explaining(f"{dtype} {list(shape)}", prod(shape) * dtype.bits // 8):
            return self._zeros(shape, kind)

    def memory(self) -> MemoryStats:
        """Total and available bytes; what the framework holds in reserve for this process is available."""
        free, total = self.runtime.mem_get_info(self.device)
        reserved, used = (getattr(self.runtime, f"memory_{what}", None) for what in ("reserved", "allocated"))
        spare = reserved(self.device) - used(self.device) if reserved and used else 0
        return MemoryStats(int(total), int(free + max(spare, 0)))

    def join(self, group: str, rank: int, size: int, address: str) -> None:
        """As every device, through the vendor's library; by copies to the host where `collective` is gloo.

        Raises:
            DeviceError: this torch does not know the library, or the ranks do not meet.
        """
        if self._collective == HOST:
            super().join(group, rank, size, address)
            return
        if not distributed.is_backend_available(self._collective):
            raise DeviceError(
                f"{self.spec}: this torch does not know the collective library {self._collective!r}, by which devices "
                f"of type {self.device.type!r} form a group; install {self._software} in a build with it, or use one "
                "rank"
            )
        self.connect(group, DistributedCommunicator(self._collective, rank, size, address))

    def close(self) -> None:
        self.runtime.empty_cache()

    @contextmanager
    def explaining(self, what: str, asked: int) -> Iterator[None]:
        """Errors of the framework inside as ours: `what`, of `asked` bytes, could not be brought to the device."""
        try:
            yield
        except RuntimeError as error:
            raise self.explained(error, what, asked) from error

    @contextmanager
    def working(self) -> Iterator[None]:
        """Errors of the framework inside as ours: they are those of work that was given to the device before."""
        try:
            yield
        except RuntimeError as error:
            text = f"{self.spec}: work given to the device failed: {error}"
            if self.out_of_memory(error):
                raise OutOfMemory(text, *self.shortage(error)) from error
            raise DeviceError(text) from error


def _plain(device: AcceleratorDevice) -> KernelRegistry:
    """The kernels of plain torch, with those that make tensors on a device or reach its groups."""
    kernels = KernelRegistry(TORCH_KERNELS)
    register_makers(kernels, device.device)
    register_collectives(kernels, device)
    arithmetic = device.capabilities.arithmetic
    if arithmetic is not None and arithmetic.determinism in ("D3", "D4"):
        register_by_token(kernels)
    first = KernelRegistry(kernels)
    register_capturable(first, device, device.captures)
    return first


def _reason(runtime: Any, graph: str | None, capture: bool) -> str | None:
    """Why a device whose vendor has graphs does not use them; None if it does, or if there are none."""
    if graph is None:
        return None
    if not capture:
        return "runtime.graph is false"
    return None if hasattr(runtime, graph) else f"{runtime.__name__} has no {graph}; install a newer release of it"


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
        self._device = device
        self._event: Any = device.runtime.Event()
        self._event.record(device.runtime.current_stream(device.device))

    def wait(self) -> None:
        with self._device.working():
            self._event.synchronize()


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
