"""A graph whose parts run on several devices: one after another, with the tensors that cross going through the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..ir.dim import product, upper_bound
from ..ir.dtype import DType
from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from ..receipt import Crossing, Receipt
from .device import Buffer, Device, Event, StateSpace
from .executable import Bound, Executable
from .graph_executable import GraphExecutable, parameter_of, place_parameter, readers_of, space_of
from .profile import Profile
from .weight import WeightSource


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """A parameter that several devices read: one buffer on each."""

    on: Mapping[Device, Buffer]


class PartitionedExecutable(GraphExecutable):
    """Executables of the parts of a graph, behind the face of one on `device`.

    Parameters and states are made by the devices, so that all parts on one device share them. Outputs are buffers of
    `device`; states are not among them, since the caller holds them.
    """

    def __init__(self, graph: Graph, device: Device, parts: Sequence[Executable], bounds: Mapping[str, int]) -> None:
        """`parts` are executables of the partitions of `graph`, in order; they name inputs and outputs as these do."""
        self.parts = tuple(parts)
        self.maker = {name: part.device for part in parts for name in part.graph.outputs}
        super().__init__(graph, device, (), bounds)

    def _receipt(self) -> Receipt:
        return Receipt.together(self.device.spec, (part.receipt for part in self.parts), self._crossings())

    def _crossings(self) -> Iterator[Crossing]:
        """What a run moves, by source and target device."""
        moved: dict[tuple[str, str], dict[str, TensorType]] = {}
        for part in self.parts:
            for value in part.graph.inputs:
                self._note(moved, value, part.device)
        for value in self.graph.outputs.values():
            self._note(moved, value, self.device)
        for (source, target), values in moved.items():
            yield Crossing(source, target, len(values), _bytes(list(values.values()), self.bounds))

    def _note(self, moved: dict[tuple[str, str], dict[str, TensorType]], value: Value, target: Device) -> None:
        source = self.maker.get(value.name, target)
        if source is not target and isinstance(value.type, TensorType):
            moved.setdefault((source.spec, target.spec), {})[value.name] = value.type

    def prepare(self, name: str, source: WeightSource | NDArray[Any]) -> Buffer:
        """Put a parameter on each device that reads it."""
        value = parameter_of(self.graph, name, source)
        made: dict[Device, Buffer] = {}
        for device, readers in self._readers(name).items():
            made[device] = place_parameter(device, value, source, readers)
            self._note_layout(value, source, device, made[device], len(made) > 1)
        return next(iter(made.values())) if len(made) == 1 else Copies(made)

    def _readers(self, name: str) -> dict[Device, list[str]]:
        """The ops that read a parameter, by device; the graph's device comes first."""
        found: dict[Device, list[str]] = {}
        for part in sorted(self.parts, key=lambda part: part.device is not self.device):
            if any(p.name == name for p in part.graph.parameters):
                known = found.setdefault(part.device, [])
                known += [op for op in readers_of(part.graph, name) if op not in known]
        return found

    def _note_layout(
        self, value: Value, source: WeightSource | NDArray[Any], device: Device, buffer: Buffer, copy: bool
    ) -> None:
        where = "" if device is self.device else f" on {device.spec}"
        if isinstance(source, WeightSource):
            layout, held = device.layout_of(buffer)
            told = f"a copy{where}, {layout}" if copy else layout + where
            self.receipt = self.receipt.with_weight(source.type.scheme, told, held, source.nbytes)
        elif copy:
            size = product(value.shape)
            held = int(size) * value.dtype.bits // 8 if isinstance(size, int) else source.nbytes
            self.receipt = self.receipt.with_weight(value.dtype.name, f"a copy{where}", held, held)

    def allocate_state(self, space: StateSpace | Mapping[str, StateSpace]) -> dict[str, Buffer]:
        """Zeroed memory for each state on the device whose ops use it."""
        home = {state.name: part.device for part in self.parts for state, _ in part.graph.states}
        return {
            state.name: home.get(state.name, self.device).allocate_state(
                state.type,  # type: ignore[arg-type]
                space_of(self.graph, state, space),
            )
            for state, _ in self.graph.states
        }

    def bind(self, buffers: Mapping[str, Buffer]) -> PartitionedBound:
        self.check_buffers(buffers)
        fixed = {v.name: buffers[v.name] for v in self.graph.inputs if v.name in buffers}
        bound = []
        for part in self.parts:
            own = (*part.graph.parameters, *(state for state, _ in part.graph.states))
            bound.append(part.bind({v.name: _on(part.device, buffers[v.name]) for v in own}))
        return PartitionedBound(self, bound, fixed)


class PartitionedBound:
    """A `PartitionedExecutable` with its parameters and states in place."""

    def __init__(self, executable: PartitionedExecutable, bound: Sequence[Bound], fixed: Mapping[str, Buffer]) -> None:
        self._exe, self._bound, self._fixed = executable, tuple(bound), fixed
        self.outputs: dict[str, Buffer] = {}

    def run(
        self,
        inputs: Mapping[str, Any],
        dims: Mapping[str, int] | None = None,
        profile: Profile | None = None,
        host: Mapping[str, NDArray[Any]] | None = None,
    ) -> Event:
        exe = self._exe
        every = {**self._fixed, **inputs}
        sizes = exe.check_inputs(every, dims)
        given = {v.name: every[v.name] for v in exe.graph.inputs}
        fetched: dict[str, NDArray[Any]] = {}
        made: dict[str, dict[Device, Buffer]] = {}
        events: list[Event] = []
        for part, bound in zip(exe.parts, self._bound, strict=True):
            wanted = {
                v.name: self._given(v.name, given[v.name], part.device, fetched)
                if v.name in given
                else moved(made[v.name], part.device, v.dtype)
                for v in part.graph.inputs
            }
            events.append(bound.run(wanted, sizes, profile, host))
            made.update((name, {part.device: buffer}) for name, buffer in bound.outputs.items())
        self.outputs = {
            name: moved(made[v.name], exe.device, v.dtype)
            for name, v in exe.graph.outputs.items()
            if isinstance(v.type, TensorType)
        }
        return AllOf((*events, exe.device.event()))

    def _given(self, name: str, value: Any, device: Device, fetched: dict[str, NDArray[Any]]) -> Any:
        """An input as a part gets it: as it was given, or as an array where it is a buffer of another device."""
        home = self._exe.device
        if device is home or (isinstance(value, np.ndarray) and not home.owns(value)):
            return value
        if name not in fetched:
            fetched[name] = home.download(value)
        return fetched[name]


@dataclass(frozen=True, slots=True)
class AllOf:
    """The event of several devices."""

    events: tuple[Event, ...]

    def wait(self) -> None:
        for event in self.events:
            event.wait()


def moved(held: dict[Device, Buffer], device: Device, dtype: DType) -> Buffer:
    """A tensor on a device, copied through the host if it is not there yet; `held` has it by device."""
    if device not in held:
        source, buffer = next(iter(held.items()))
        held[device] = device.upload(source.download(buffer), dtype)
    return held[device]


def _on(device: Device, buffer: Buffer) -> Buffer:
    return buffer.on[device] if isinstance(buffer, Copies) else buffer


def _bytes(types: Sequence[TensorType], bounds: Mapping[str, int]) -> int | None:
    """The bytes of tensors at the largest sizes; None where a size has no bound."""
    try:
        return sum(upper_bound(product(kind.shape), bounds) * kind.dtype.bits // 8 for kind in types)
    except GraphError:
        return None
