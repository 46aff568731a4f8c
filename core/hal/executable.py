"""A graph that is ready to run, and the default way to run one: a flat list of kernel calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError, GraphError, OutOfMemory, XinhengError
from ..ir.dim import Expr, symbols
from ..ir.evaluate import bind_sizes, bind_unbacked, check_sizes, resolve
from ..ir.graph import Graph, Node, Value
from ..ir.types import TensorType
from ..ops import FAMILIES
from ..receipt import Receipt
from .device import Buffer, Device, Event, StateSpace
from .graph_executable import GraphExecutable, check_bounds, check_dtype
from .kernel import Kernel, Refusal
from .profile import Profile
from .weight import WeightSource

Step = Callable[[list[Any], dict[str, int]], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel that runs a node, the device it runs on, and why better ones were refused."""

    kernel: Kernel
    device: Device
    refusals: tuple[Refusal, ...] = ()

    def failed(self, node: Node, error: Exception) -> DeviceError:
        """The error of a node whose kernel raised `error`."""
        where = f"{self.device.spec}: kernel {self.kernel.name!r} of {node.op.name}"
        text = f"{where} failed to compute {node.results[0].type}: {error}"
        if not self.device.out_of_memory(error):
            return DeviceError(text)
        asked, free = self.device.shortage(error)
        told = "" if free is None else f" ({free >> 20} MiB are free)"
        return OutOfMemory(f"{text}{told}; lower engine.cache_memory or engine.max_num_batched_tokens", asked, free)


Placement = Sequence[Choice]
"""One choice per node of a graph, in order."""


class Bound(Protocol):
    """An executable with its parameters and states in place."""

    outputs: dict[str, Buffer]
    """Outputs of the last run; they stay valid until the next one."""

    def run(
        self,
        inputs: Mapping[str, Any],
        dims: Mapping[str, int] | None = None,
        profile: Profile | None = None,
        host: Mapping[str, NDArray[Any]] | None = None,
    ) -> Event:
        """Start one run and return the event of its end.

        Args:
            inputs: numpy arrays of the declared dtypes, or buffers of the device.
            dims: sizes, if the caller knows them already; otherwise they are read off the inputs.
            profile: times each step, waiting for the device after it.
            host: for inputs given as buffers, the same values as numpy arrays: a run does not have to wait for the
                device to fetch those that a kernel reads on the host.

        Raises:
            GraphError: an input is missing or does not fit, or sizes that must be equal are not.
            DeviceError: a size exceeds the bound it was compiled for, or a kernel failed.
        """
        ...


class Executable(Protocol):
    """A compiled graph."""

    graph: Graph
    device: Device
    receipt: Receipt

    def prepare(self, name: str, source: WeightSource | np.ndarray[Any, Any]) -> Buffer:
        """Put a parameter on the device, in a layout that suits all ops that read it here."""
        ...

    def allocate_state(self, space: StateSpace | Mapping[str, StateSpace]) -> dict[str, Buffer]:
        """Zeroed memory for every state of the graph; `space` is common or by state name."""
        ...

    def bind(self, buffers: Mapping[str, Buffer]) -> Bound:
        """Fix parameters and states (and any inputs that stay the same)."""
        ...


class KernelExecutable(GraphExecutable):
    """Runs the kernels of a graph one after another; everything that can be is resolved when it is made.

    `functions` are what is called for each step, as planned for its node.
    """

    def __init__(self, graph: Graph, device: Device, placement: Placement, bounds: Mapping[str, int]) -> None:
        super().__init__(graph, device, placement, bounds)
        self._slot: dict[int, int] = {}
        self._host_slot: dict[int, int] = {}
        self._number_slot: dict[int, int] = {}
        for value in graph.values():
            self._slot[id(value)] = len(self._slot) + 1
        self._last_use = self._lifetimes()
        self.functions: list[Any] = []
        self.steps: list[tuple[Node, Choice, Step]] = [
            (node, choice, self._step(i, node, choice))
            for i, (node, choice) in enumerate(zip(graph.nodes, placement, strict=True))
        ]
        self.device_slots = self._read_on_device()
        self.receipt = replace(self.receipt, notes=self._host_notes())
        self.frame: list[Any] = [None] * self._next_slot()
        for value in graph.constants:
            self.frame[self.slot(value)] = device.upload(np.asarray(value.data), value.dtype)
            if id(value) in self._number_slot:
                self.frame[self._number_slot[id(value)]] = value.data

    def slot(self, value: Value | None) -> int:
        """Where a value lives in a frame; slot 0 is always None, for absent operands."""
        return 0 if value is None else self._slot[id(value)]

    @property
    def host_slots(self) -> dict[int, int]:
        """Slots of host copies by the identity of their value."""
        return self._host_slot

    def host_readers(self, name: str) -> list[str]:
        """The kernels that read an input on the host, once each, as "op (kernel)"."""
        found = [
            f"{node.op.name} ({choice.kernel.name})"
            for node, choice, _ in self.steps
            for operand, value in _named(node)
            if value.name == name and operand in choice.kernel.host
        ]
        return list(dict.fromkeys(found))

    def _host_notes(self) -> tuple[str, ...]:
        names = [v.name for v in self.graph.inputs if id(v) in self._host_slot]
        if not names:
            return ()
        readers = dict.fromkeys(reader for name in names for reader in self.host_readers(name))
        return (f"{', '.join(readers)} reads {', '.join(names)} on the host; given as buffers, a run waits for them",)

    def _read_on_device(self) -> frozenset[int]:
        """The slots of values that some kernel, or the caller, wants on the device."""
        read = {self.slot(v) for v in self.graph.outputs.values()}
        for node, choice, _ in self.steps:
            read.update(self.slot(value) for operand, value in _named(node) if operand not in choice.kernel.host)
        return frozenset(read)

    def bind(self, buffers: Mapping[str, Buffer]) -> KernelBound:
        self.check_buffers(buffers)
        frame = list(self.frame)
        for value in (*self.graph.parameters, *(s for s, _ in self.graph.states)):
            frame[self.slot(value)] = buffers[value.name]
        fixed = {v.name: buffers[v.name] for v in self.graph.inputs if v.name in buffers}
        return KernelBound(self, frame, fixed)

    def _lifetimes(self) -> dict[int, list[int]]:
        """For each node the slots that no later node and no output reads."""
        keep = {id(v) for v in (*self.graph.outputs.values(), *(f for _, f in self.graph.states))}
        seen: dict[int, int] = {}
        for index, node in enumerate(self.graph.nodes):
            for value in (*node.operands, *node.results):
                if value is not None and value.kind == "result" and id(value) not in keep:
                    seen[id(value)] = index
        ends: dict[int, list[int]] = {}
        for identity, index in seen.items():
            ends.setdefault(index, []).append(self._slot[identity])
        return ends

    def _step(self, index: int, node: Node, choice: Choice) -> Step:
        """One closure that reads operands from a frame, calls the kernel and puts the results back."""
        kernel = choice.kernel
        function = kernel.function.plan(node, self.bounds) if hasattr(kernel.function, "plan") else kernel.function
        self.functions.append(function)
        operands = []
        for i, value in enumerate(node.operands):
            declared = node.op.operands[min(i, len(node.op.operands) - 1)]
            if declared.name not in kernel.parameters:
                continue
            on_host = value is not None and declared.name in kernel.host
            number = value is not None and _as_number(node, i)
            if value is None or not (on_host or number):
                operands.append(self.slot(value))
            else:
                slots = self._host_slot if on_host else self._number_slot
                operands.append(slots.setdefault(id(value), self._next_slot()))
        known = {k: v for k, v in node.attributes.items() if k in kernel.parameters}
        fixed = {k: v for k, v in known.items() if not _symbolic(v)}
        sized = {k: v for k, v in known.items() if _symbolic(v)}
        results = [self.slot(r) for r in node.results]
        dead = self._last_use.get(index, [])
        unbacked = [r for r in node.results if _makes_sizes(r)]
        shape = self.device.shape

        def step(frame: list[Any], sizes: dict[str, int]) -> None:
            arguments = [frame[i] for i in operands]
            if sized:
                made = function(*arguments, **fixed, **{k: resolve(v, sizes) for k, v in sized.items()})
            else:
                made = function(*arguments, **fixed)
            if len(results) == 1:
                frame[results[0]] = made
            else:
                for at, result in zip(results, made, strict=True):
                    frame[at] = result
            for value in unbacked:
                bind_unbacked(value, shape(frame[self._slot[id(value)]]), sizes)
            for at in dead:
                frame[at] = None

        return step

    def _next_slot(self) -> int:
        return 1 + len(self._slot) + len(self._host_slot) + len(self._number_slot)


class KernelBound:
    """A `KernelExecutable` with its parameters and states in place."""

    def __init__(self, executable: KernelExecutable, frame: list[Any], fixed: Mapping[str, Buffer]) -> None:
        self._exe, self._frame, self._fixed = executable, frame, fixed
        self._host = {
            v.name: executable.host_slots[id(v)] for v in executable.graph.inputs if id(v) in executable.host_slots
        }
        self._inputs = [(v, executable.slot(v)) for v in executable.graph.inputs]
        self.outputs: dict[str, Buffer] = {}

    def run(
        self,
        inputs: Mapping[str, Any],
        dims: Mapping[str, int] | None = None,
        profile: Profile | None = None,
        host: Mapping[str, NDArray[Any]] | None = None,
    ) -> Event:
        exe, device = self._exe, self._exe.device
        given = {**self._fixed, **inputs}
        sizes = bind_sizes(exe.graph, given, dims, exe.shape_of)
        check_bounds(exe.bounds, sizes)
        waiting = check_sizes(exe.graph.checks, sizes)
        frame = list(self._frame)
        for declared, slot in self._inputs:
            name, value = declared.name, given[declared.name]
            if isinstance(value, np.ndarray) and not device.owns(value):
                check_dtype(declared, value)
                if slot in exe.device_slots:
                    frame[slot] = device.upload(value, declared.dtype)
            else:
                frame[slot] = value
            if name in self._host:
                frame[self._host[name]] = self._on_host(name, value if host is None else host.get(name, value))
        for node, choice, step in exe.steps:
            try:
                if profile is None:
                    step(frame, sizes)
                else:
                    with profile.step(node, choice.kernel.name, device):
                        step(frame, sizes)
            except XinhengError:
                raise
            except Exception as error:
                raise choice.failed(node, error) from error
            waiting = waiting and check_sizes(waiting, sizes)
        if waiting:
            raise GraphError(f"{waiting[0].reason}: no input and no op tells {waiting[0].left} or {waiting[0].right}")
        self.outputs = {name: frame[exe.slot(value)] for name, value in exe.graph.outputs.items()}
        return device.event()

    def _on_host(self, name: str, value: Any) -> NDArray[Any]:
        """The values of an input that a kernel reads on the host."""
        if isinstance(value, np.ndarray):
            return value
        try:
            return self._exe.device.host_list(value)
        except DeviceError as error:
            readers = ", ".join(self._exe.host_readers(name))
            raise DeviceError(f"input {name!r} of {readers}: {error}") from None


def _named(node: Node) -> Iterator[tuple[str, Value]]:
    """The operands of a node that are there, with the names the op gives them."""
    last = len(node.op.operands) - 1
    for i, value in enumerate(node.operands):
        if value is not None:
            yield node.op.operands[min(i, last)].name, value


def _as_number(node: Node, index: int) -> bool:
    """Whether a kernel gets a scalar constant as a Python number: beside a tensor that it is broadcast against."""
    last = len(node.op.operands) - 1
    if node.op not in FAMILIES["elementwise"] or last < 1 or index < last - 1:
        return False
    return _is_scalar(node.operands[index]) and not _is_scalar(node.operands[2 * last - 1 - index])


def _is_scalar(value: Value | None) -> bool:
    return value is not None and isinstance(value.data, int | float)


def _symbolic(value: Any) -> bool:
    return isinstance(value, Expr) or (isinstance(value, tuple) and any(_symbolic(v) for v in value))


def _makes_sizes(value: Value) -> bool:
    dims = value.type.shape if isinstance(value.type, TensorType) else ()
    return any(symbol.unbacked for dim in dims for symbol in symbols(dim))
