"""Small steps captured once per size as a graph of the device, and replayed: nothing is launched kernel by kernel.

A graph of a device is frozen: it reads and writes the memory of the run it was captured from, and has the host values
of that run in it. So inputs are copied into buffers that stay, sizes are padded to a few, and kernels that read lists
on the host renew them by the `update(host)` of their planned function: once before the capture, where they may allocate
what they keep in `Record.notes`, and before each replay. Outputs are overwritten by the next run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError, UnsupportedOp
from xinheng.core.hal import Buffer, Device, Event, Executable, KernelExecutable, Profile, StateSpace, WeightSource
from xinheng.core.hal.bucketed import buckets, fill
from xinheng.core.hal.executable import KernelBound
from xinheng.core.hal.graph_executable import check_bounds
from xinheng.core.hal.padding import Fill, fills_of
from xinheng.core.ir.dim import evaluate as evaluate_dim
from xinheng.core.ir.evaluate import bind_sizes, check_sizes
from xinheng.core.ir.graph import Graph, Value
from xinheng.core.receipt import Receipt

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
    notes: dict[int, Any] = field(default_factory=dict)


def capturable(plain: KernelExecutable) -> str | None:
    """Why the runs of an executable cannot be captured; None if they can."""
    late = [symbol.name for symbol in plain.graph.symbols().values() if symbol.unbacked]
    if late:
        return f"the size {late[0]!r} is known only after its op ran"
    for (node, choice, _), function in zip(plain.steps, plain.functions, strict=True):
        name = f"{node.op.name} ({choice.kernel.name})"
        if choice.device is not plain.device:
            return f"{name} runs on {choice.device.spec}"
        if choice.kernel.host and not hasattr(function, "update"):
            return f"{name} reads lists on the host that it cannot renew"
    try:
        fills_of(plain.graph)
    except UnsupportedOp as error:
        return str(error)
    return None


class CapturedExecutable:
    """An executable whose small steps are captured; `plain` runs kernels one by one."""

    def __init__(self, device: AcceleratorDevice, plain: KernelExecutable, new_graph: Any) -> None:
        self.graph: Graph = plain.graph
        self.device: Device = device
        self.accelerator, self.plain, self.new_graph = device, plain, new_graph
        self.fills: dict[str, Fill] = fills_of(plain.graph)
        note = (
            f"steps of at most {LARGEST} rows are captured as graphs of the device, padded to sizes 1, 2, 4 and so on"
        )
        self.receipt: Receipt = replace(plain.receipt, notes=(*plain.receipt.notes, note))

    def prepare(self, name: str, source: WeightSource | NDArray[Any]) -> Buffer:
        buffer = self.plain.prepare(name, source)
        self.receipt = replace(self.receipt, layouts=self.plain.receipt.layouts)
        return buffer

    def allocate_state(self, space: StateSpace | Mapping[str, StateSpace]) -> dict[str, Buffer]:
        return self.plain.allocate_state(space)

    def bind(self, buffers: Mapping[str, Buffer]) -> CapturedBound:
        fixed = {v.name: buffers[v.name] for v in self.graph.inputs if v.name in buffers}
        plain = self.plain.bind({name: buffer for name, buffer in buffers.items() if name not in fixed})
        return CapturedBound(self, plain, fixed)


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
        padded = {name: self._bucket(name, size) for name, size in sizes.items()}
        key = tuple(sorted(padded.items()))
        lists = self._lists(given, host or {}, padded)
        record = None if profile is not None or not self._small(given) else self._record(key, given, padded, lists)
        if record is None:
            event = self._plain.run(given, sizes, profile, host)
            self.outputs = self._plain.outputs
            return event
        for value in exe.graph.inputs:
            if value.name in record.inputs:
                self._renew(record.inputs[value.name], given[value.name], exe.fills[value.name])
        record.lists = lists
        self._update(record)
        record.graph.replay()
        self.outputs = {
            name: record.outputs[name][tuple(slice(n) for n in _sized(value, sizes))]
            for name, value in exe.graph.outputs.items()
        }
        return exe.accelerator.event()

    def _small(self, given: Mapping[str, Any]) -> bool:
        shapes = [self._exe.plain.shape_of(given[v.name]) for v in self._exe.graph.inputs]
        return all(0 < shape[0] <= LARGEST for shape in shapes if shape)

    def _bucket(self, name: str, size: int) -> int:
        """The smallest power of two that holds a size, or its bound."""
        bound = self._exe.plain.bounds.get(name)
        return 1 << (size - 1).bit_length() if bound is None else next(n for n in buckets(bound) if n >= size)

    def _record(
        self, key: Key, given: Mapping[str, Any], padded: Mapping[str, int], lists: dict[str, NDArray[Any]]
    ) -> Record | None:
        """The graph of some sizes; None while they are new, or if the device cannot capture them."""
        if key in self._records:
            self._records.move_to_end(key)
            return self._records[key]
        self._seen[key] = self._seen.get(key, 0) + 1
        if key in self._refused or self._seen[key] < WARM:
            return None
        try:
            record = self._capture(given, padded, lists)
        except (DeviceError, RuntimeError) as error:
            self._refused[key] = str(error)
            return None
        self._records[key] = record
        if len(self._records) > RECORDS:
            self._records.popitem(last=False)
        return record

    def _capture(self, given: Mapping[str, Any], padded: Mapping[str, int], lists: dict[str, NDArray[Any]]) -> Record:
        exe, device = self._exe, self._exe.accelerator
        buffers: dict[str, torch.Tensor] = {}
        for value in exe.graph.inputs:
            if exe.plain.slot(value) in exe.plain.device_slots:
                buffers[value.name] = device.empty(_sized(value, padded), value.dtype)
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
            for (node, choice, _), function in zip(self._exe.plain.steps, self._exe.plain.functions, strict=True):
                if choice.kernel.host:
                    named = {name: node.operand(name) for name in choice.kernel.host}
                    function.update({name: record.lists[v.name] for name, v in named.items() if v is not None})
        finally:
            self._exe.accelerator.record = None

    def _lists(
        self, given: Mapping[str, Any], host: Mapping[str, NDArray[Any]], padded: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        """The inputs that kernels read on the host, padded."""
        exe = self._exe
        wanted = [v for v in exe.graph.inputs if id(v) in exe.plain.host_slots]
        found = {v: host.get(v.name, given[v.name]) for v in wanted}
        return {
            v.name: fill(
                x if isinstance(x, np.ndarray) else exe.accelerator.host_list(x), _sized(v, padded), exe.fills[v.name]
            )
            for v, x in found.items()
        }

    def _renew(self, buffer: torch.Tensor, given: Any, rest: Fill) -> None:
        """Put an input where the graph reads it, and behind it what makes padding invisible."""
        if isinstance(given, np.ndarray):
            array = fill(given, tuple(buffer.shape), rest)
            buffer.copy_(self._exe.accelerator.host_tensor(array), non_blocking=True)
            return
        if tuple(given.shape) != tuple(buffer.shape):
            buffer[...] = given.reshape(-1)[-1] if isinstance(rest, str) else rest
        buffer[tuple(map(slice, given.shape))].copy_(given)


def captured(device: AcceleratorDevice, plain: KernelExecutable, new_graph: Any) -> Executable:
    """An executable that captures, or `plain` with a note that says why not."""
    reason = capturable(plain)
    if reason is None:
        return CapturedExecutable(device, plain, new_graph)
    plain.receipt = replace(plain.receipt, notes=(*plain.receipt.notes, f"nothing is captured: {reason}"))
    return plain


def _sized(value: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate_dim(dim, sizes) for dim in value.shape)
