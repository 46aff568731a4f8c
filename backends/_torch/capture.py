"""Small steps captured once per size as a graph of the device, and replayed: nothing is launched kernel by kernel.

A graph of a device is frozen: it reads and writes the memory of the run it was captured from, and has the host values
of that run in it. So inputs are copied into buffers that stay, sizes are padded to a few, and kernels that read lists
on the host renew them by the `update(host)` of their planned function: once before the capture, where they may allocate
what they keep in `Record.notes`, and before each replay. Outputs are overwritten by the next run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError, UnsupportedOp
from xinheng.core.hal import Buffer, Event, Executable, KernelExecutable, Profile, ReplayingExecutable
from xinheng.core.hal.bucketed import buckets, fill, sized_shape
from xinheng.core.hal.executable import KernelBound
from xinheng.core.hal.graph_executable import check_bounds
from xinheng.core.hal.padding import Fill, fills_of
from xinheng.core.ir.evaluate import bind_sizes, check_sizes

if TYPE_CHECKING:
    from .accelerator import AcceleratorDevice

RECORDS = 64
"""Graphs that one bound executable keeps; the one unused for longest goes first."""
LARGEST = 512
"""Rows of the longest input that is still captured: larger steps keep the device busy without it."""
WARM = 2
"""A size is captured when it comes for this time: kernels are loaded and tuned by then, and rare sizes cost nothing."""

Key = tuple[tuple[str, int], ...]


@dataclass
class Record:
    """A captured graph with the buffers it reads and writes; kernels may keep what belongs to it in `notes`."""

    graph: Any
    inputs: dict[str, torch.Tensor]
    lists: dict[str, NDArray[Any]]
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    notes: dict[object, Any] = field(default_factory=dict)


def capturable(plain: KernelExecutable) -> str | None:
    """Why the runs of an executable cannot be captured; None if they can, where their inputs can be padded."""
    late = [symbol.name for symbol in plain.graph.symbols().values() if symbol.unbacked]
    if late:
        return f"the size {late[0]!r} is known only after its op ran"
    for (node, choice, _), function in zip(plain.steps, plain.functions, strict=True):
        name = f"{node.op.name} ({choice.kernel.name})"
        if choice.device is not plain.device:
            return f"{name} runs on {choice.device.spec}"
        if choice.kernel.host and not hasattr(function, "update"):
            return f"{name} reads lists on the host that it cannot renew"
    return None


class CapturedExecutable(ReplayingExecutable):
    """An executable whose small steps are captured."""

    def __init__(
        self, device: AcceleratorDevice, plain: KernelExecutable, new_graph: Any, fills: dict[str, Fill]
    ) -> None:
        super().__init__(
            plain,
            f"steps of at most {LARGEST} rows are captured as graphs of the device when their sizes come again, padded "
            "to 1, 2, 4 and so on; after runs the receipt lists them",
        )
        self.accelerator, self.new_graph, self.fills = device, new_graph, fills
        self.buckets = {name: buckets(bound) for name, bound in plain.bounds.items()}
        self.renewing = [
            (function, {name: value.name for name in choice.kernel.host if (value := node.operand(name)) is not None})
            for (node, choice, _), function in zip(plain.steps, plain.functions, strict=True)
            if choice.kernel.host
        ]
        """The functions that read lists on the host, with the inputs that these operands are."""

        self._told: tuple[str, ...] = ()

    def tell(self, captured: Collection[Key], refused: Mapping[Key, str]) -> None:
        """Put into the receipt which sizes are captured, and which could not be and why."""
        told = [f"captured as graphs: {'; '.join(map(_spelled, captured))}"] if captured else []
        for reason in dict.fromkeys(refused.values()):
            sizes = "; ".join(_spelled(key) for key, why in refused.items() if why == reason)
            told.append(f"not captured: {sizes}: {reason}")
        kept = [note for note in self.receipt.notes if note not in self._told]
        self._told = tuple(told)
        self.receipt = replace(self.receipt, notes=(*kept, *told))

    def bind(self, buffers: Mapping[str, Buffer]) -> CapturedBound:
        return CapturedBound(self, *self.bound(buffers))


class CapturedBound:
    """A captured executable with its parameters and states in place."""

    def __init__(self, executable: CapturedExecutable, plain: KernelBound, fixed: Mapping[str, Buffer]) -> None:
        self._exe, self._plain, self._fixed = executable, plain, dict(fixed)
        self._records: OrderedDict[Key, Record] = OrderedDict()
        self._seen: dict[Key, int] = {}
        self._refused: dict[Key, str] = {}
        self.outputs: dict[str, Buffer] = {}

    @property
    def captured(self) -> int:
        """How many sizes are captured."""
        return len(self._records)

    @property
    def refused(self) -> Mapping[Key, str]:
        """The sizes that could not be captured, with the reason of the device."""
        return self._refused

    def run(
        self,
        inputs: Mapping[str, Any],
        dims: Mapping[str, int] | None = None,
        profile: Profile | None = None,
        host: Mapping[str, NDArray[Any]] | None = None,
    ) -> Event:
        """As every `Bound`; with a profile the kernels run one by one, not from a graph."""
        exe = self._exe
        given = {**self._fixed, **inputs}
        sizes = bind_sizes(exe.graph, given, dims, exe.plain.shape_of)
        check_bounds(exe.plain.bounds, sizes)
        check_sizes(exe.graph.checks, sizes)
        record, read = None, dict(host or {})
        if profile is None and self._small(given):
            read |= self._read(given, read)
            record = self._record({name: self._bucket(name, size) for name, size in sizes.items()}, given, read)
        if record is None:
            event = self._plain.run(given, sizes, profile, read or None)
            self.outputs = self._plain.outputs
            return event
        with exe.accelerator.working():
            for value in exe.graph.inputs:
                if value.name in record.inputs:
                    self._renew(record.inputs[value.name], given[value.name], exe.fills[value.name])
            self._update(record)
            record.graph.replay()
        self.outputs = {
            name: record.outputs[name][tuple(slice(n) for n in sized_shape(value.shape, sizes))]
            for name, value in exe.graph.outputs.items()
        }
        return exe.accelerator.event()

    def _small(self, given: Mapping[str, Any]) -> bool:
        shapes = [self._exe.plain.shape_of(given[v.name]) for v in self._exe.graph.inputs]
        return all(0 < shape[0] <= LARGEST for shape in shapes if shape)

    def _bucket(self, name: str, size: int) -> int:
        """The smallest power of two that holds a size, or its bound."""
        known = self._exe.buckets.get(name)
        return 1 << (size - 1).bit_length() if known is None else next(n for n in known if n >= size)

    def _record(
        self, padded: dict[str, int], given: Mapping[str, Any], read: Mapping[str, NDArray[Any]]
    ) -> Record | None:
        """The graph of some sizes, with the lists of this run; None while they are new, or cannot be captured."""
        key = tuple(sorted(padded.items()))
        if key not in self._records:
            self._seen[key] = self._seen.get(key, 0) + 1
            if key in self._refused or self._seen[key] < WARM:
                return None
            try:
                self._records[key] = self._capture(given, padded, self._padded(read, padded))
            except (DeviceError, RuntimeError) as error:
                self._refused[key] = str(error)
            if len(self._records) > RECORDS:
                self._records.popitem(last=False)
            self._exe.tell(self._records, self._refused)
            return self._records.get(key)
        self._records.move_to_end(key)
        self._records[key].lists = self._padded(read, padded)
        return self._records[key]

    def _capture(self, given: Mapping[str, Any], padded: Mapping[str, int], lists: dict[str, NDArray[Any]]) -> Record:
        exe, device = self._exe, self._exe.accelerator
        buffers: dict[str, torch.Tensor] = {}
        for value in exe.graph.inputs:
            if exe.plain.slot(value) in exe.plain.device_slots:
                buffers[value.name] = device.empty(sized_shape(value.shape, padded), value.dtype)
                self._renew(buffers[value.name], given[value.name], exe.fills[value.name])
        record = Record(exe.new_graph(), buffers, lists)
        self._update(record)
        device.synchronize()
        device.record = record
        try:
            with device.capturing(record.graph):
                self._plain.run({**given, **lists, **buffers}, padded, None, lists)
        finally:
            device.record = None
        record.outputs = dict(self._plain.outputs)
        return record

    def _update(self, record: Record) -> None:
        """Give kernels that read lists on the host those of this run."""
        self._exe.accelerator.record = record
        try:
            for function, operands in self._exe.renewing:
                function.update({name: record.lists[given] for name, given in operands.items()})
        finally:
            self._exe.accelerator.record = None

    def _read(self, given: Mapping[str, Any], host: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The inputs that kernels read on the host."""
        exe = self._exe
        wanted = (v.name for v in exe.graph.inputs if id(v) in exe.plain.host_slots)
        found = {name: host.get(name, given[name]) for name in wanted}
        return {name: x if isinstance(x, np.ndarray) else exe.accelerator.host_list(x) for name, x in found.items()}

    def _padded(self, read: Mapping[str, NDArray[Any]], padded: Mapping[str, int]) -> dict[str, NDArray[Any]]:
        """Inputs on the host in the sizes of a graph."""
        values = (v for v in self._exe.graph.inputs if v.name in read)
        return {v.name: fill(read[v.name], sized_shape(v.shape, padded), self._exe.fills[v.name]) for v in values}

    def _renew(self, buffer: torch.Tensor, given: Any, rest: Fill) -> None:
        """Put an input where the graph reads it, and behind it what makes padding invisible."""
        if isinstance(given, np.ndarray):
            array = fill(given, tuple(buffer.shape), rest)
            buffer.copy_(self._exe.accelerator.host_tensor(array), non_blocking=True)
            return
        if tuple(given.shape) != tuple(buffer.shape):
            buffer[...] = given.reshape(-1)[-1] if isinstance(rest, str) else rest
        buffer[tuple(map(slice, given.shape))].copy_(given)


def _spelled(key: Key) -> str:
    return " ".join(f"{name}={size}" for name, size in key)


def captured(device: AcceleratorDevice, plain: KernelExecutable, new_graph: Any) -> Executable:
    """An executable that captures, or `plain` with a note that says why not."""
    reason = capturable(plain)
    if reason is None:
        try:
            return CapturedExecutable(device, plain, new_graph, fills_of(plain.graph))
        except UnsupportedOp as error:
            reason = str(error)
    return uncaptured(plain, reason)


def uncaptured(plain: KernelExecutable, reason: str) -> KernelExecutable:
    """An executable that does not capture, with a note that says why not."""
    plain.receipt = replace(plain.receipt, notes=(*plain.receipt.notes, f"nothing is captured: {reason}"))
    return plain
