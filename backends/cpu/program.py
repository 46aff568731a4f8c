"""From a graph to a program that runs in one native call: commands, a memory plan, and the Python kernels between."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xinheng.core.errors import GraphError, XinhengError
from xinheng.core.hal import Choice
from xinheng.core.ir.dim import Dim, Expr, upper_bound
from xinheng.core.ir.dtype import DType, bfloat16, float16, float32, int8, int32
from xinheng.core.ir.graph import Graph, Node, Value
from xinheng.core.ir.types import StateType, TensorType, WeightType

TYPES = {float32: 0, bfloat16: 1, float16: 2, int32: 8}
"""Codes of element types in commands."""
CODES = (
    "norm",
    "rotary",
    "gated",
    "write_cache",
    "attention",
    "linear",
    "embedding",
    "tile_rows",
    "tile_product",
    "float_product",
    "elementwise",
    "gather_rows",
    "copy",
    "argmax",
    "gating",
    "permute",
    "unpermute",
    "grouped",
    "batched",
    "latent_attention",
    "moe",
    "random_uniform",
    "sample",
)
"""Commands in the order of `RUNS` in csrc/program.cpp."""
NUMBER, SIZE, ADDRESS = range(3)
ARENA = 0
"""The slot of the planned memory."""
ALIGNMENT = 64


class NotPlannable(XinhengError):
    """A node has no place in a program: its kernel runs from Python between native calls."""


class Unbounded(XinhengError):
    """A size of a graph has no bound, so that memory cannot be planned: its kernels run one by one."""


@dataclass(frozen=True, slots=True)
class Argument:
    """`Argument` in csrc/program.cpp."""

    kind: int
    index: int
    value: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: an address in a slot; `row` is the distance of rows (of the last axis) in values."""

    slot: int
    offset: int
    type: TensorType
    row: Dim

    @property
    def contiguous(self) -> bool:
        shape = self.type.shape
        return not shape or self.row == shape[-1]


@dataclass(slots=True)
class Command:
    """One native kernel call, and the node it is for."""

    code: int
    arguments: list[Argument]
    node: Node


@dataclass(slots=True)
class PythonStep:
    """A node that a Python kernel runs between native calls, and why it is no command."""

    node: Node
    choice: Choice
    index: int
    reason: str


@dataclass(slots=True)
class Program:
    """What `Planner` makes: steps, the size of the arena, and the tables to be filled for each run."""

    steps: list[Command | PythonStep] = field(default_factory=list)
    arena: int = 0
    slots: dict[int, int] = field(default_factory=dict)
    """By the identity of a value, its slot in the table of addresses."""
    sizes: dict[Dim, int] = field(default_factory=dict)
    """Sizes that commands use, with their index."""
    places: dict[int, Place] = field(default_factory=dict)
    """By the identity of a value, where it lies."""
    kept: list[Any] = field(default_factory=list)
    """Memory that commands point to."""
    states: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By the identity of a state, the slots of its parts."""
    written: dict[int, Value] = field(default_factory=dict)
    """By the identity of a state that commands wrote, the state it was before any of them."""
    state_sizes: dict[tuple[int, str], int] = field(default_factory=dict)
    """By the identity of a state and a word, the index of a size that its memory tells."""
    weights: dict[int, int] = field(default_factory=dict)
    """By the identity of a weight, the slot of its table of parts."""
    rooms: list[tuple[int, int, TensorType]] = field(default_factory=list)
    """Offset, bytes and type of the results in the arena, if these lie apart."""
    slot_count: int = ARENA + 1
    size_count: int = 0


Encoder = Callable[["Planner", Node], None]
"""Adds the commands of a node to a planner; NotPlannable if this very node cannot be a command."""


class Planner:
    """Walks over a graph once, hands out memory by lifetime, and lets encoders write commands.

    With `apart`, a multiple of `ALIGNMENT`, so many bytes around each result stay free and no memory is used twice.
    """

    def __init__(
        self,
        graph: Graph,
        placement: Sequence[Choice],
        bounds: Mapping[str, int],
        encoders: Mapping[str, Encoder],
        apart: int = 0,
    ) -> None:
        self.graph, self.placement, self.encoders, self._apart = graph, placement, encoders, apart
        self.limits = {**{n: s.maximum for n, s in graph.symbols().items() if s.maximum is not None}, **bounds}
        self.program = Program()
        self.done: set[int] = set()
        operands = (value for node in graph.nodes for value in node.operands)
        self.read = {id(value) for value in (*graph.outputs.values(), *operands)}
        """Identities of the values that a node or the caller reads."""
        self._free: list[tuple[int, int]] = []
        self._held: dict[int, list[tuple[int, int]]] = {}
        self._root: dict[int, int] = {}
        self._state_root: dict[int, int] = {}
        self._uses = {id(node): choice for node, choice in zip(graph.nodes, placement, strict=True)}
        self._last = self._lifetimes()

    def plan(self) -> Program:
        """The program of the graph.

        Raises:
            Unbounded: a size has no bound, or is known only while the graph runs.
        """
        for symbol in self.graph.symbols().values():
            if symbol.unbacked or symbol.name not in self.limits:
                raise Unbounded(f"size {symbol.name} has no bound")
        for index, (node, choice) in enumerate(zip(self.graph.nodes, self.placement, strict=True)):
            if id(node) not in self.done:
                self._step(index, node, choice)
            for root in self._last.get(index, []):
                self._release(root)
        return self.program

    # ------------------------------------------------------------------------------------------------ for encoders
    def number(self, value: Dim | float | bool | None) -> Argument:
        """A number, or a size that is known when the program runs; None is 0."""
        if isinstance(value, float):
            return Argument(NUMBER, 0, struct.unpack("q", struct.pack("d", value))[0])
        if isinstance(value, Expr):
            if value not in self.program.sizes:
                self.program.sizes[value] = self._new_size()
            return Argument(SIZE, self.program.sizes[value], 1)
        return Argument(NUMBER, 0, int(value or 0))

    def pointer(self, memory: Any) -> Argument:
        """The address of a ctypes object, which lives as long as the program."""
        self.program.kept.append(memory)
        return Argument(NUMBER, 0, ctypes.addressof(memory))

    def address(self, value: Value | None, extra: int = 0) -> Argument:
        """The address of a tensor, or null for an absent operand."""
        if value is None:
            return Argument(NUMBER, 0, 0)
        place = self.place(value)
        return Argument(ADDRESS, place.slot, place.offset + extra)

    def type_code(self, value: Value | None) -> Argument:
        """The code of a tensor's element type; NotPlannable if commands have none."""
        if value is None:
            return self.number(0)
        return self.number(code_of(value.dtype))

    def place(self, value: Value) -> Place:
        """Where a tensor lies; inputs, parameters and constants lie in slots of their own."""
        found = self.program.places.get(id(value))
        if found is None:
            shape = value.shape
            found = Place(self.slot_of(value), 0, value.tensor, shape[-1] if shape else 1)
            self.program.places[id(value)] = found
        return found

    def slot_of(self, value: Value) -> int:
        """The slot of a value that is not in the arena."""
        if id(value) not in self.program.slots:
            self.program.slots[id(value)] = self._new_slot()
        return self.program.slots[id(value)]

    def weight_table(self, weight: Value) -> tuple[Argument, Argument]:
        """The address of the table of a weight's parts, and how many there are."""
        assert isinstance(weight.type, WeightType)
        if id(weight) not in self.program.weights:
            self.program.weights[id(weight)] = self._new_slot()
        return Argument(ADDRESS, self.program.weights[id(weight)], 0), self.number(len(weight.type.parts))

    def state_part(self, state: Value, part: int) -> Argument:
        """The address of a tensor of a state, by its number among the parts of the type."""
        root = self._state_root.get(id(state), id(state))
        if root not in self.program.states:
            assert isinstance(state.type, StateType)
            self.program.states[root] = tuple(self._new_slot() for _ in state.type.parts)
        return Argument(ADDRESS, self.program.states[root][part], 0)

    def state_size(self, state: Value, what: str) -> Argument:
        """`blocks` or `block_size` of a state's memory, or `stride PART AXIS` in values."""
        key = (self._state_root.get(id(state), id(state)), what)
        if key not in self.program.state_sizes:
            self.program.state_sizes[key] = self._new_size()
        return Argument(SIZE, self.program.state_sizes[key], 1)

    def share_state(self, before: Value, after: Value) -> None:
        """A state after a write is where it was before."""
        self._state_root[id(after)] = self._state_root.get(id(before), id(before))
        self.program.written[id(after)] = self.program.written.get(id(before), before)

    def _new_slot(self) -> int:
        self.program.slot_count += 1
        return self.program.slot_count - 1

    def _new_size(self) -> int:
        self.program.size_count += 1
        return self.program.size_count - 1

    def result(self, value: Value) -> Argument:
        """Room for a contiguous result, and its address."""
        if id(value) not in self.program.places:
            size = self._bytes(value.tensor)
            offset = self._allocate(self._root.get(id(value), id(value)), size)
            if self._apart:
                self.program.rooms.append((offset, size, value.tensor))
            self.program.places[id(value)] = Place(ARENA, offset, value.tensor, value.shape[-1] if value.shape else 1)
        return self.address(value)

    def alias(self, value: Value, source: Value, offset: int = 0, row: Dim | None = None) -> None:
        """Let a result be a view of an operand, `offset` bytes behind its start."""
        place = self.place(source)
        shape = value.shape
        distance = row if row is not None else shape[-1] if shape else 1
        self.program.places[id(value)] = Place(place.slot, place.offset + offset, value.tensor, distance)

    def command(self, code: str, node: Node, *arguments: Argument) -> None:
        """Add a command."""
        self.program.steps.append(Command(CODES.index(code), list(arguments), node))

    def kernel(self, node: Node) -> str:
        """The name of the kernel that was chosen for a node."""
        return self._uses[id(node)].kernel.name

    def later(self, node: Node) -> list[Node]:
        """The nodes behind one, in order."""
        at = next(i for i, n in enumerate(self.graph.nodes) if n is node)
        return list(self.graph.nodes[at + 1 :])

    # ------------------------------------------------------------------------------------------------ inside
    def _step(self, index: int, node: Node, choice: Choice) -> None:
        encoder = self.encoders.get(choice.kernel.name)
        before, reason = len(self.program.steps), "its kernel has no command"
        if encoder is not None:
            try:
                encoder(self, node)
                return
            except NotPlannable as error:
                del self.program.steps[before:]
                reason = str(error)
        self.program.steps.append(PythonStep(node, choice, index, reason))
        for value in node.results:
            if isinstance(value.type, TensorType):
                self.program.places.pop(id(value), None)
                self.place(value)

    def _lifetimes(self) -> dict[int, list[int]]:
        """For each node, the roots of memory that nothing reads any more behind it."""
        for node in self.graph.nodes:
            if node.op.name in VIEWS and node.operands[0] is not None:
                source = node.operands[0]
                for value in node.results:
                    self._root[id(value)] = self._root.get(id(source), id(source))
        last: dict[int, int] = {}
        for index, node in enumerate(self.graph.nodes):
            for touched in (*node.operands, *node.results):
                if touched is not None:
                    last[self._root.get(id(touched), id(touched))] = index
        for value in self.graph.outputs.values():
            last.pop(self._root.get(id(value), id(value)), None)
        ends: dict[int, list[int]] = {}
        for root, index in last.items():
            ends.setdefault(index, []).append(root)
        return ends

    def _bytes(self, kind: TensorType) -> int:
        count = 1
        for dim in kind.shape:
            count *= self._bound(dim)
        return max(count * value_bytes(kind.dtype), 1)

    def _bound(self, dim: Dim) -> int:
        try:
            return upper_bound(dim, self.limits)
        except GraphError as error:
            raise Unbounded(str(error)) from error

    def _allocate(self, root: int, size: int) -> int:
        """The smallest hole that fits, or the end of the arena."""
        size = -(-size // ALIGNMENT) * ALIGNMENT
        if self._apart:
            start = self.program.arena + self._apart
            self.program.arena = start + size + self._apart
            return start
        fitting = [hole for hole in self._free if hole[1] >= size]
        if fitting:
            start, room = min(fitting, key=lambda hole: hole[1])
            self._free.remove((start, room))
            if room > size:
                self._free.append((start + size, room - size))
        else:
            start = self.program.arena
            self.program.arena += size
        self._held.setdefault(root, []).append((start, size))
        return start

    def _release(self, root: int) -> None:
        for start, size in self._held.pop(root, []):
            for hole in list(self._free):
                if hole[0] + hole[1] == start or start + size == hole[0]:
                    self._free.remove(hole)
                    start, size = min(start, hole[0]), size + hole[1]
            self._free.append((start, size))


VIEWS = frozenset({"reshape", "split", "slice"})
"""Ops whose results may lie where their operand lies."""


def value_bytes(kind: DType) -> int:
    """Bytes of an element in the memory of this device; a bool takes one."""
    return -(-kind.bits // 8)


def cache_code(kind: DType) -> int:
    """The code of the element type of a cache, which may hold int8 codes."""
    return 3 if kind is int8 else code_of(kind)


def code_of(kind: DType) -> int:
    """The code of an element type; NotPlannable if commands have none."""
    if kind not in TYPES:
        raise NotPlannable(f"commands have no {kind}")
    return TYPES[kind]
