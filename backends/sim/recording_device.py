"""A simulated device that records the kernel calls of a run once per combination of sizes, and replays them.

A record is frozen: it reads and writes the buffers of the run it was made from. So inputs are copied into those
buffers, kernels are given the host lists of each replay by their `update`, and outputs are overwritten by the next run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError, GraphError
from xinheng.core.hal import (
    Buffer,
    Event,
    Executable,
    KernelExecutable,
    Placement,
    Profile,
    ReplayingExecutable,
)
from xinheng.core.hal.executable import KernelBound
from xinheng.core.ir.dtype import DType
from xinheng.core.ir.evaluate import bind_sizes, check_sizes
from xinheng.core.ir.graph import Graph, Value

from .device import SimDevice
from .handles import SimTensor
from .kernels import Launch, SimKernel

RECORDS = 64
"""Records that one bound executable keeps; the one unused for longest goes first."""


class RecordingDevice(SimDevice):
    """Runs every graph by replaying records."""

    def __init__(self, spec: str, name: str, **limits: Any) -> None:
        super().__init__(spec, name, **limits)
        self.record: list[Launch] | None = None

    def launch(self, launch: Launch) -> None:
        super().launch(launch)
        if self.record is not None:
            self.record.append(launch)

    def upload(self, array: NDArray[Any], dtype: DType) -> Buffer:
        self._refuse("an upload")
        return super().upload(array, dtype)

    def download(self, buffer: Buffer) -> NDArray[Any]:
        self._refuse("a download")
        return super().download(buffer)

    def renew(self, buffers: Mapping[str, SimTensor], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put the inputs of a replay where its record reads them."""
        for name, tensor in buffers.items():
            tensor.array[...] = arrays[name]

    def _refuse(self, what: str) -> None:
        if self.record is not None:
            raise DeviceError(f"{self.spec}: {what} cannot be part of a recorded run; do it before or after")

    def compile(self, graph: Graph, placement: Placement, bounds: Mapping[str, int]) -> Executable:
        """A recording executable; one that runs kernel by kernel if a size is known only after its op ran.

        Raises:
            DeviceError: an op cannot be recorded, because another device runs it, or it does not compute by launches.
        """
        for node, choice in zip(graph.nodes, placement, strict=True):
            name = f"{node.op.name} ({choice.kernel.name})"
            if choice.device is not self:
                raise DeviceError(f"{self.spec} records whole runs, which {name} on {choice.device.spec} breaks in two")
            if not isinstance(choice.kernel.function, SimKernel):
                raise DeviceError(f"{self.spec} cannot record {name}, which computes behind its back")
        late = [symbol.name for symbol in graph.symbols().values() if symbol.unbacked]
        plain = KernelExecutable(graph, self, placement, bounds)
        if late:
            note = f"nothing is recorded, since the size {late[0]!r} is known only after its op ran"
            plain.receipt = replace(plain.receipt, notes=(*plain.receipt.notes, note))
            return plain
        return RecordingExecutable(self, plain)


class RecordingExecutable(ReplayingExecutable):
    """A graph on a recording device."""

    def __init__(self, device: RecordingDevice, plain: KernelExecutable) -> None:
        super().__init__(plain)
        self._recorder = device

    def bind(self, buffers: Mapping[str, Buffer]) -> RecordingBound:
        return RecordingBound(self._recorder, self.plain, *self.bound(buffers))


class Record:
    """The kernel calls of one run, and the buffers they read and write."""

    def __init__(self, inputs: Mapping[str, SimTensor]) -> None:
        self.inputs = inputs
        self.launches: list[Launch] = []
        self.outputs: dict[str, Buffer] = {}

    def replay(self, lists: Mapping[str, NDArray[Any]]) -> None:
        """Compute all calls again, each into the buffers it had; `lists` are the inputs on the host."""
        for launch in self.launches:
            kernel = launch.kernel
            if kernel.hosted:
                named = {name: kernel.node.operand(name) for name in kernel.hosted.values()}
                kernel.update({name: lists[value.name] for name, value in named.items() if value is not None})
            for tensor, array in zip(launch.made, kernel.device.compute(launch), strict=True):
                tensor.array[...] = array


class RecordingBound:
    """A recording executable with its parameters and states in place."""

    def __init__(
        self, device: RecordingDevice, executable: KernelExecutable, plain: KernelBound, fixed: Mapping[str, Buffer]
    ) -> None:
        self._device, self._exe, self._plain, self._fixed = device, executable, plain, fixed
        self._records: OrderedDict[tuple[tuple[str, int], ...], Record] = OrderedDict()
        self.run_number = 0
        self.outputs: dict[str, Buffer] = {}

    @property
    def recorded(self) -> int:
        """How many runs are recorded."""
        return len(self._records)

    def run(
        self,
        inputs: Mapping[str, Any],
        dims: Mapping[str, int] | None = None,
        profile: Profile | None = None,
        host: Mapping[str, NDArray[Any]] | None = None,
    ) -> Event:
        """As every `Bound`; with a profile the kernels run one by one, not from a record."""
        given = {**self._fixed, **inputs}
        if profile is not None:
            event = self._plain.run(given, dims, profile, host)
            self.outputs = self._plain.outputs
            return event
        graph = self._exe.graph
        sizes = bind_sizes(graph, given, dims, self._shape)
        check_sizes(graph.checks, sizes)
        lists = self._lists(given, host or {})
        key = tuple(sorted(sizes.items()))
        if key in self._records:
            self._records.move_to_end(key)
            record = self._records[key]
            self._device.renew(
                record.inputs, {v.name: self._array(v, given[v.name]) for v in graph.inputs if v.name in record.inputs}
            )
            record.replay(lists)
        else:
            # what is recorded computes too, and must not be replayed at once: a state would be written twice
            record = self._records[key] = self._capture(given, sizes, lists)
            if len(self._records) > RECORDS:
                self._records.popitem(last=False)
        self.run_number += 1
        self.outputs = {name: OutputOfRun(self, tensor) for name, tensor in record.outputs.items()}
        return self._device.event()

    def _capture(self, given: Mapping[str, Any], sizes: Mapping[str, int], lists: Mapping[str, Any]) -> Record:
        exe = self._exe
        record = Record(
            {
                v.name: self._device.upload(self._array(v, given[v.name]), v.dtype)
                for v in exe.graph.inputs
                if exe.slot(v) in exe.device_slots
            }
        )
        self._device.record = record.launches
        try:
            self._plain.run({**given, **lists, **record.inputs}, sizes, None, lists)
        finally:
            self._device.record = None
        record.outputs = self._plain.outputs
        return record

    def _lists(self, given: Mapping[str, Any], host: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The inputs that kernels read on the host, as arrays."""
        wanted = [v for v in self._exe.graph.inputs if id(v) in self._exe.host_slots]
        found = {v: host.get(v.name, given[v.name]) for v in wanted}
        return {
            v.name: self._array(v, x) if isinstance(x, np.ndarray) else self._device.host_list(x)
            for v, x in found.items()
        }

    def _array(self, value: Value, given: Any) -> NDArray[Any]:
        """The numbers of an input, which must have its dtype."""
        array: NDArray[Any] = given if isinstance(given, np.ndarray) else self._device.mine(given).array
        if array.dtype != value.dtype.numpy:
            raise GraphError(f"input {value.name!r} is {array.dtype}, the graph wants {value.dtype}")
        return array

    def _shape(self, value: Any) -> tuple[int, ...]:
        return value.shape if isinstance(value, np.ndarray) else self._device.shape(value)


class OutputOfRun(SimTensor):
    """An output of a replay: valid until the next run of the same executable overwrites it."""

    def __init__(self, bound: RecordingBound, tensor: SimTensor) -> None:
        super().__init__(tensor.home, tensor.dtype)
        self._bound, self._tensor, self._number = bound, tensor, bound.run_number

    @property
    def pending(self) -> bool:
        return False

    @property
    def array(self) -> NDArray[Any]:
        if self._number != self._bound.run_number:
            raise DeviceError(
                f"{self.home.spec}: an output of run {self._number} is read after run {self._bound.run_number} has "
                "overwritten it; download it, or hand it on, before the next run"
            )
        return self._tensor.array
