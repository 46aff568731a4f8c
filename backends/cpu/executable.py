"""Executables of the CPU: weights in the layout of the kernels that read them, and steps as native programs."""

from __future__ import annotations

import ctypes
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError, XinhengError
from xinheng.core.hal import BAND, Buffer, Event, KernelExecutable, Placement, Profile, Span, WeightPart, WeightSource
from xinheng.core.hal.executable import KernelBound
from xinheng.core.hal.graph_executable import check_bounds, check_dtype, parameter_of
from xinheng.core.ir.dim import Dim, Expr, evaluate
from xinheng.core.ir.evaluate import bind_sizes, check_sizes, resolve
from xinheng.core.ir.graph import Graph, Node, Value
from xinheng.core.ir.types import StateType, WeightType

from .arrays import Array, address, contiguous, strides
from .commands import ENCODERS
from .guarded import Room
from .handles import HostWeight
from .kernels import Library, TiledWeight, by_group, tiled
from .layouts import TILE_KERNELS, agreed
from .memory import Slabs
from .program import ARENA, CODES, VIEWS, Command, Planner, Program, PythonStep, Unbounded

Segment = Callable[[list[Any], dict[str, int], Profile | None], None]
"""A part of a step: takes the values that Python holds, the sizes of the run, and a profile to be filled."""

_ARGUMENT = struct.Struct("=qii")
_COMMAND = struct.Struct("=iii")


class CPUExecutable(KernelExecutable):
    """Runs a graph as a native program if all its sizes are bounded, else kernel by kernel."""

    def __init__(
        self, graph: Graph, device: Any, placement: Placement, bounds: Mapping[str, int], library: Library
    ) -> None:
        placement = agreed(graph, placement, device)
        super().__init__(graph, device, placement, bounds)
        self.library = library
        self.program: Program | None = None
        self._slabs = Slabs()
        self._readers = _readers(graph, placement)
        try:
            apart = 0 if self.guard is None else BAND
            program = Planner(graph, placement, bounds, ENCODERS, apart).plan()
        except Unbounded as error:
            self._note(f"kernels run one by one: {error}")
            return
        if any(isinstance(step, Command) for step in program.steps):
            self.program = program
            for line in python_steps(program):
                self._note(line)

    def _note(self, text: str) -> None:
        self.receipt = replace(self.receipt, notes=(*self.receipt.notes, text))

    @property
    def guard(self) -> Any:
        """The guard that watches the device now."""
        return getattr(self.device, "guard", None)

    def prepare(self, name: str, source: WeightSource | NDArray[Any]) -> Buffer:
        if isinstance(source, WeightSource):
            source = _as_declared(source)
        if not isinstance(source, WeightSource) or not self._tiled(name):
            return super().prepare(name, source)
        parameter_of(self.graph, name, source)
        weight = tiled(self.library, by_group(source), self._slabs)
        layout, held = self.device.layout_of(weight)
        self.receipt = self.receipt.with_weight(source.type.scheme, layout, held, source.nbytes)
        return weight

    def _tiled(self, name: str) -> bool:
        """Whether the kernels that read a parameter want it in tiles."""
        readers = self._readers.get(name)
        return readers is not None and readers <= TILE_KERNELS

    def bind(self, buffers: Mapping[str, Buffer]) -> KernelBound:
        buffers = {name: self._packed(name, buffer) for name, buffer in buffers.items()}
        plain = super().bind(buffers)
        self._slabs.settle()
        return plain if self.program is None else ProgramBound(self, self.program, plain, buffers)

    def _packed(self, name: str, buffer: Buffer) -> Buffer:
        """A weight in tiles where they are wanted; the parts of a graph on several devices are given it as stored."""
        if not isinstance(buffer, HostWeight) or not self._tiled(name):
            return buffer
        parts = tuple(WeightPart(part.scheme, part.rows, _loader(part.data)) for part in buffer.parts)
        return tiled(self.library, by_group(WeightSource(name, buffer.shape, parts)), self._slabs)


def _as_declared(source: WeightSource) -> WeightSource:
    """A matrix in the runs of rows that its type has, for commands count these: those of one scheme are one."""
    parts = source.parts
    if len(source.shape) != 2 or len(parts) == len(source.type.parts):
        return source
    whole = WeightPart(parts[0].scheme, source.shape[0], lambda: np.concatenate([part.load() for part in parts]))
    return WeightSource(source.name, source.shape, (whole,))


def _loader(rows: Array) -> Callable[[], NDArray[np.uint8]]:
    return lambda: rows.view(np.uint8)


def _readers(graph: Graph, placement: Placement) -> dict[str, set[str]]:
    """For each parameter, the names of the kernels that read it."""
    readers: dict[str, set[str]] = {value.name: set() for value in graph.parameters}
    for node, choice in zip(graph.nodes, placement, strict=True):
        for value in node.operands:
            if value is not None and value.kind == "parameter":
                readers[value.name].add(choice.kernel.name)
    return {name: kernels for name, kernels in readers.items() if kernels}


class ProgramBound(KernelBound):
    """A program with its memory, parameters and states in place."""

    def __init__(
        self, executable: CPUExecutable, program: Program, plain: KernelBound, buffers: Mapping[str, Buffer]
    ) -> None:
        super().__init__(executable, plain._frame, plain._fixed)
        self._cpu, self._program = executable, program
        self._kept: list[Any] = [buffers]
        # fresh zero pages take no memory until a run touches them
        self._arena = np.zeros(program.arena + 64, np.uint8)
        start = -address(self._arena) % 64
        self._arena = self._arena[start : start + program.arena]
        guard = executable.guard
        if guard is not None:
            for offset, size, kind in program.rooms:
                guard.kept(Room(self._arena, offset, size, kind))
        self._slots = (ctypes.c_int64 * program.slot_count)()
        self._slots[ARENA] = address(self._arena)
        self._sizes = (ctypes.c_int64 * max(program.size_count, 1))()
        self._failure = ctypes.c_int64()
        self._tensors: dict[int, Any] = {}
        self._place(buffers)
        self._segments = [self._segment(list(steps), native) for native, steps in groupby(program.steps, _is_command)]
        self._sizes_of = _evaluator(program.sizes)
        self._inputs_at = [(v, program.slots.get(id(v))) for v in executable.graph.inputs]
        self._known: dict[tuple[int, ...], dict[str, int]] = {}
        produced = {id(value) for node in executable.graph.nodes for value in node.results}
        in_python = any(isinstance(step, PythonStep) for step in program.steps)
        self._mixed = in_python or any(id(value) not in produced for value in executable.graph.outputs.values())

    def _place(self, buffers: Mapping[str, Buffer]) -> None:
        """Fill the addresses and sizes that stay the same."""
        program, graph = self._program, self._cpu.graph
        for value in graph.parameters:
            buffer = buffers[value.name]
            if isinstance(value.type, WeightType):
                if id(value) in program.weights:
                    self._slots[program.weights[id(value)]] = self._table(buffer)
            elif id(value) in program.slots:
                self._pin(program.slots[id(value)], buffer)
        for value in graph.constants:
            if id(value) in program.slots:
                self._pin(program.slots[id(value)], self._frame[self._cpu.slot(value)])
        for value, _ in graph.states:
            if id(value) in program.states:
                self._place_state(value, buffers[value.name])

    def _pin(self, slot: int, tensor: Array) -> None:
        tensor = contiguous(tensor)
        self._kept.append(tensor)
        self._slots[slot], self._tensors[slot] = address(tensor), tensor

    def _table(self, weight: Any) -> int:
        if isinstance(weight, TiledWeight):
            return ctypes.addressof(weight.table)
        table = ctypes.create_string_buffer(self._cpu.library.pack(weight))
        self._kept.append(table)
        return ctypes.addressof(table)

    def _place_state(self, value: Value, state: Any) -> None:
        assert isinstance(value.type, StateType)
        for slot, part in zip(self._program.states[id(value)], state, strict=True):
            self._slots[slot] = address(part)
        blocks, size = state[0].shape[:2]
        known = {"blocks": blocks, "block_size": size}
        for part, pages in enumerate(state):
            known |= {f"stride {part} {axis}": step for axis, step in enumerate(strides(pages))}
        for word, count in known.items():
            if (id(value), word) in self._program.state_sizes:
                self._sizes[self._program.state_sizes[id(value), word]] = count

    def _segment(self, steps: list[Any], native: bool) -> Segment:
        return self._native(steps) if native else self._python(steps)

    def _native(self, commands: list[Command]) -> Segment:
        """One call that runs commands behind each other."""
        packed, arguments, first = bytearray(), bytearray(), 0
        for command in commands:
            packed += _COMMAND.pack(command.code, first, len(command.arguments))
            for a in command.arguments:
                arguments += _ARGUMENT.pack(a.value, a.kind, a.index)
            first += len(command.arguments)
        held = (ctypes.create_string_buffer(bytes(packed)), ctypes.create_string_buffer(bytes(arguments)))
        self._kept.append(held)
        run, count, failure = self._cpu.library.run, len(commands), self._failure
        given = (ctypes.addressof(held[0]), count, ctypes.addressof(held[1]))
        tables = tuple(ctypes.addressof(x) for x in (self._sizes, self._slots, failure))

        def segment(frame: list[Any], sizes: dict[str, int], profile: Profile | None) -> None:
            stamps = None if profile is None else np.zeros(count + 1, np.int64)
            failed = run(*given, *tables, None if stamps is None else stamps.ctypes.data)
            if failed:
                raise self._error(commands[failed - 1].node, failure.value)
            if profile is not None and stamps is not None:
                _record(profile, commands, stamps)

        return segment

    def _error(self, node: Node, code: int) -> DeviceError:
        told = f"position {code - 1} of its indices, slots or sequences is out of range" if code > 0 else "unknown type"
        return DeviceError(f"{self._cpu.device.spec}: {node.op.name} failed to compute {node.results[0].type}: {told}")

    def _python(self, steps: list[PythonStep]) -> Segment:
        """Kernels in Python, whose operands are views of the arena and whose results get addresses."""
        calls = [(self._cpu.steps[step.index], step) for step in steps]

        def segment(frame: list[Any], sizes: dict[str, int], profile: Profile | None) -> None:
            for (_, _, call), step in calls:
                for value in step.node.operands:
                    if value is not None:
                        frame[self._cpu.slot(value)] = self._found(value, frame, sizes)
                watch = profile.step(step.node, step.choice.kernel.name, self._cpu.device) if profile else nullcontext()
                try:
                    with watch:
                        call(frame, sizes)
                except XinhengError:
                    raise
                except Exception as error:
                    raise step.choice.failed(step.node, error) from error
                for value in step.node.results:
                    slot, made = self._program.slots.get(id(value)), frame[self._cpu.slot(value)]
                    if slot is not None and made is not None:  # what nobody reads is gone already
                        made = self._own(contiguous(made), step.node)
                        frame[self._cpu.slot(value)] = made
                        self._slots[slot], self._tensors[slot] = address(made), made

        return segment

    def _own(self, made: Array, node: Node) -> Array:
        """What a kernel in Python made, copied if it is a view of memory that other results get when it is free."""
        borrowed = 0 <= address(made) - address(self._arena) < self._arena.size
        return made.copy() if borrowed and node.op.name not in VIEWS else made

    def _view(self, value: Value, sizes: Mapping[str, int]) -> Any:
        """A tensor of the arena, or a view of an input or of what a kernel in Python made."""
        place = self._program.places[id(value)]
        *shape, row = resolve((*place.type.shape, place.row), sizes)
        kind = place.type.dtype.numpy
        memory = self._arena if place.slot == ARENA else self._tensors[place.slot].reshape(-1).view(np.uint8)
        steps, step = [kind.itemsize] * len(shape), row * kind.itemsize
        for axis in reversed(range(len(shape) - 1)):
            steps[axis], step = step, step * shape[axis]
        return np.ndarray(shape, kind, memory, place.offset, steps) if 0 not in shape else np.empty(shape, kind)

    def run(
        self,
        inputs: Mapping[str, Any],
        dims: Mapping[str, int] | None = None,
        profile: Profile | None = None,
        host: Mapping[str, NDArray[Any]] | None = None,
    ) -> Event:
        exe = self._cpu
        given = {**self._fixed, **inputs}
        sizes = self._sizes_for(given, dims)
        frame = list(self._frame) if self._mixed else self._frame
        for value, slot in self._inputs_at:
            self._place_input(value, slot, given[value.name], frame)
            if self._mixed and value.name in self._host:
                told = given[value.name] if host is None else host.get(value.name, given[value.name])
                frame[self._host[value.name]] = self._on_host(value.name, told)
        for index, count in zip(self._program.sizes.values(), self._sizes_of(sizes), strict=True):
            self._sizes[index] = count
        for segment in self._segments:
            segment(frame, sizes, profile)
        self.outputs = {name: self._found(value, frame, sizes) for name, value in exe.graph.outputs.items()}
        return exe.device.event()

    def _place_input(self, value: Value, slot: int | None, array: Any, frame: list[Any]) -> None:
        """Let commands find an input where it is, and Python kernels find it in the frame."""
        check_dtype(value, array)
        tensor = self._cpu.device.upload(array, value.dtype) if self._mixed else contiguous(array)
        if slot is not None:
            self._tensors[slot] = tensor
            self._slots[slot] = address(tensor)
        if self._mixed:
            frame[self._cpu.slot(value)] = tensor

    def _found(self, value: Value, frame: list[Any], sizes: Mapping[str, int]) -> Any:
        """A value that is in the frame if Python made it, and else lies where the plan says."""
        held = frame[self._cpu.slot(self._program.written.get(id(value), value))]
        return self._view(value, sizes) if held is None else held

    def _sizes_for(self, given: Mapping[str, Any], dims: Mapping[str, int] | None) -> dict[str, int]:
        """The sizes of a run; those of inputs of shapes seen before are not checked again."""
        exe = self._cpu
        key = tuple(size for v in exe.graph.inputs for size in given[v.name].shape) if not dims else None
        if key is not None and key in self._known:
            return self._known[key]
        sizes = bind_sizes(exe.graph, given, dims, exe.shape_of)
        check_bounds(exe.bounds, sizes)
        check_sizes(exe.graph.checks, sizes)
        if key is not None:
            if len(self._known) >= 1024:
                self._known.clear()
            self._known[key] = sizes
        return sizes


def _record(profile: Profile, commands: list[Command], stamps: NDArray[np.int64]) -> None:
    """Enter the times at which commands began into a profile."""
    shift = time.perf_counter() - stamps[-1] / 1e9
    for command, start, end in zip(commands, stamps[:-1], stamps[1:], strict=True):
        node, code = command.node, CODES[command.code]
        made, at = str(node.results[0].type), shift + start / 1e9
        profile.spans.append(Span(node.op.name, f"native {code}", made, at, (end - start) / 1e9, in_program=True))


def python_steps(program: Program) -> list[str]:
    """One line per kind of node that runs from Python between native calls, with how often and why."""
    found = Counter(
        (step.node.op.name, step.choice.kernel.name, step.reason)
        for step in program.steps
        if isinstance(step, PythonStep)
    )
    return [f"{op} ({kernel}) x{n} runs from Python: {reason}" for (op, kernel, reason), n in found.items()]


def _is_command(step: Command | PythonStep) -> bool:
    return isinstance(step, Command)


def _evaluator(sizes: Mapping[Dim, int]) -> Callable[[Mapping[str, int]], list[int]]:
    """A function from named sizes to all sizes that commands use."""
    wanted = [dim for dim in sizes if isinstance(dim, Expr)]
    known: dict[frozenset[tuple[str, int]], list[int]] = {}

    def compute(named: Mapping[str, int]) -> list[int]:
        key = frozenset(named.items())  # in any order: callers name sizes in their own
        if key not in known:
            if len(known) >= 1024:
                known.clear()
            known[key] = [evaluate(dim, named) for dim in wanted]
        return known[key]

    return compute
