"""A graph that is ready to run, and the default way to run one: a flat list of kernel calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import DeviceError, GraphError, XinhengError
from ..ir.dim import Expr, symbols
from ..ir.evaluate import bind_sizes, bind_unbacked, check_sizes, resolve
from ..ir.graph import Graph, Node, Value
from ..ir.types import StateType, TensorType, Type, WeightType
from ..ops import FAMILIES
from ..receipt import Receipt
from .device import Buffer, Device, Event, StateSpace
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


Placement = Sequence[Choice]
"""One choice per node of a graph, in order."""


class Bound(Protocol):
    """An executable with its parameters and states in place."""

    outputs: dict[str, Buffer]
    """Outputs of the last run; they stay valid until the next one."""

    def run(
        self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None, profile: Profile | None = None
    ) -> Event:
        """Start one run and return the event of its end.

        Args:
            inputs: numpy arrays of the declared dtypes, or buffers of the device.
            dims: sizes, if the caller knows them already; otherwise they are read off the inputs.
            profile: times each step, waiting for the device after it.

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


class KernelExecutable:
    """Runs the kernels of a graph one after another; everything that can be is resolved when it is made."""

    def __init__(self, graph: Graph, device: Device, placement: Placement, bounds: Mapping[str, int]) -> None:
        self.graph, self.device, self.bounds = graph, device, dict(bounds)
        self.receipt = Receipt.of(graph, placement, device.spec)
        self.placement = placement
        self._slot: dict[int, int] = {}
        self._host_slot: dict[int, int] = {}
        self._number_slot: dict[int, int] = {}
        for value in graph.values():
            self._slot[id(value)] = len(self._slot) + 1
        self._last_use = self._lifetimes()
        self.steps: list[tuple[Node, Choice, Step]] = [
            (node, choice, self._step(i, node, choice))
            for i, (node, choice) in enumerate(zip(graph.nodes, placement, strict=True))
        ]
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

    def uses(self, name: str) -> list[str]:
        """The ops that read a parameter, once each."""
        nodes = (n for n in self.graph.nodes if any(v is not None and v.name == name for v in n.operands))
        return list(dict.fromkeys(node.op.name for node in nodes))

    def prepare(self, name: str, source: WeightSource | np.ndarray[Any, Any]) -> Buffer:
        value = next((p for p in self.graph.parameters if p.name == name), None)
        if value is None:
            raise GraphError(f"graph {self.graph.name!r} has no parameter {name!r}")
        if isinstance(source, WeightSource):
            if value.type != source.type:
                raise GraphError(f"parameter {name!r} is {value.type}, its source is {source.type}")
            buffer = self.device.prepare(source, self.uses(name))
            layout, held = self.device.layout_of(buffer)
            self.receipt = self.receipt.with_weight(source.type.scheme, layout, held, source.nbytes)
            return buffer
        if not isinstance(value.type, TensorType) or tuple(source.shape) != value.shape:
            raise GraphError(
                f"parameter {name!r} is {value.type}, its source is an array of shape {list(source.shape)}"
            )
        return self.device.upload(source, value.dtype)

    def allocate_state(self, space: StateSpace | Mapping[str, StateSpace]) -> dict[str, Buffer]:
        made = {}
        for state, _ in self.graph.states:
            assert isinstance(state.type, StateType)
            if not isinstance(space, StateSpace) and state.name not in space:
                raise GraphError(f"graph {self.graph.name!r}: no space is given for state {state.name!r}")
            made[state.name] = self.device.allocate_state(
                state.type, space if isinstance(space, StateSpace) else space[state.name]
            )
        return made

    def bind(self, buffers: Mapping[str, Buffer]) -> KernelBound:
        frame = list(self.frame)
        for value in (*self.graph.parameters, *(s for s, _ in self.graph.states)):
            if value.name not in buffers:
                raise GraphError(f"graph {self.graph.name!r}: no buffer for {value.name!r}")
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
        operands, moved = [], []
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
            moved.append(None if value is None or on_host or number else value.type)
        if choice.device is not self.device:
            function = _elsewhere(function, self.device, choice.device, node, moved)
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
        self._inputs = [(v.name, executable.slot(v), v.dtype, v.dtype.numpy) for v in executable.graph.inputs]
        self.outputs: dict[str, Buffer] = {}

    def run(
        self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None, profile: Profile | None = None
    ) -> Event:
        exe, device = self._exe, self._exe.device
        given = {**self._fixed, **inputs}
        sizes = bind_sizes(exe.graph, given, dims, self._shape)
        for name, bound in exe.bounds.items():
            if sizes.get(name, 0) > bound:
                raise DeviceError(f"{name} is {sizes[name]}, but the graph was compiled for at most {bound}")
        waiting = check_sizes(exe.graph.checks, sizes)
        frame = list(self._frame)
        for name, slot, dtype, numpy_type in self._inputs:
            value = given[name]
            if isinstance(value, np.ndarray) and not device.owns(value):
                if value.dtype != numpy_type:
                    raise GraphError(f"input {name!r} is {value.dtype}, the graph wants {dtype}")
                frame[slot] = device.upload(value, dtype)
            else:
                frame[slot] = value
            if name in self._host:
                frame[self._host[name]] = value if isinstance(value, np.ndarray) else device.download(value)
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
                where = f"{choice.device.spec}: kernel {choice.kernel.name!r} of {node.op.name}"
                raise DeviceError(f"{where} failed to compute {node.results[0].type}: {error}") from error
            waiting = waiting and check_sizes(waiting, sizes)
        if waiting:
            raise GraphError(f"{waiting[0].reason}: no input and no op tells {waiting[0].left} or {waiting[0].right}")
        self.outputs = {name: frame[exe.slot(value)] for name, value in exe.graph.outputs.items()}
        return device.event()

    def _shape(self, value: Any) -> tuple[int, ...]:
        if isinstance(value, np.ndarray):
            return value.shape
        if isinstance(value, list | tuple | int | float | np.generic):
            raise GraphError(
                f"inputs are numpy arrays or buffers of {self._exe.device.spec}, not {type(value).__name__}"
            )
        return self._exe.device.shape(value)


def _elsewhere(
    function: Callable[..., Any], home: Device, other: Device, node: Node, kinds: Sequence[Type | None]
) -> Callable[..., Any]:
    """A kernel of another device as one of this device: operands and results cross through the host.

    `kinds` has the types of the operands it takes, None for those that are absent, numbers or on the host already.
    """
    for kind in (*kinds, *(r.type for r in node.results)):
        if isinstance(kind, StateType | WeightType):
            what = "a state" if isinstance(kind, StateType) else "a weight"
            raise DeviceError(f"op {node.op.name!r} reads {what}, which cannot leave {home.spec!r}")
    results = [r.type for r in node.results]

    def run(*operands: Any, **attributes: Any) -> Any:
        moved = []
        for operand, kind in zip(operands, kinds, strict=True):
            crossed = other.upload(home.download(operand), kind.dtype) if isinstance(kind, TensorType) else operand
            moved.append(crossed)
        made = function(*moved, **attributes)
        produced = made if isinstance(made, tuple) else (made,)
        back = [
            home.upload(other.download(x), kind.dtype)
            for x, kind in zip(produced, results, strict=True)
            if isinstance(kind, TensorType)
        ]
        return back[0] if len(back) == 1 else tuple(back)

    return run


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
