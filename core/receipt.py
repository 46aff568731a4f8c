"""What runs where: for each op of a compiled graph the kernel, its device, and why better ones were refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol


class _Choice(Protocol):
    @property
    def kernel(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    @property
    def refusals(self) -> tuple[Any, ...]: ...


@dataclass(frozen=True, slots=True)
class Line:
    """One way in which one op runs. `moved` says that it runs on another device than the graph's."""

    op: str
    kernel: str
    device: str
    count: int
    moved: bool
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Decomposed:
    """An op that was replaced by simpler ones: how often, and why each kernel of the device did not take it."""

    op: str
    count: int
    refused: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Crossing:
    """What each run carries from one device to another: how many tensors, and their bytes at the largest sizes.

    `nbytes` is None where a size has no bound.
    """

    source: str
    target: str
    tensors: int
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Layout:
    """How the weights of one scheme lie in a device's memory: how many there are, their bytes there and as stored."""

    scheme: str
    layout: str
    weights: int
    nbytes: int
    stored: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """The record of a compilation: nothing is decomposed or moved without standing here."""

    device: str
    lines: tuple[Line, ...]
    decomposed: tuple[Decomposed, ...] = ()
    layouts: tuple[Layout, ...] = ()
    notes: tuple[str, ...] = ()
    crossings: tuple[Crossing, ...] = ()

    @classmethod
    def of(cls, graph: Any, placement: Iterable[_Choice], device: str) -> Receipt:
        """Group the nodes of a graph by op, kernel and device."""
        counts: dict[tuple[str, str, str, tuple[tuple[str, str], ...]], int] = {}
        for node, choice in zip(graph.nodes, placement, strict=True):
            refused = tuple((r.kernel, r.reason) for r in choice.refusals)
            key = (node.op.name, choice.kernel.name, choice.device.spec, refused)
            counts[key] = counts.get(key, 0) + 1
        lines = [
            Line(op, kernel, where, n, where != device, refused) for (op, kernel, where, refused), n in counts.items()
        ]
        return cls(device, tuple(lines))

    @classmethod
    def together(cls, device: str, parts: Iterable[Receipt], crossings: Iterable[Crossing]) -> Receipt:
        """The receipt of a graph that was cut into parts, some of them on other devices than `device`."""
        counts: dict[Line, int] = {}
        notes: dict[str, None] = {}
        for part in parts:
            for line in part.lines:
                key = replace(line, count=0, moved=line.device != device)
                counts[key] = counts.get(key, 0) + line.count
            notes.update(dict.fromkeys(part.notes))
        lines = tuple(replace(line, count=n) for line, n in counts.items())
        return cls(device, lines, notes=tuple(notes), crossings=tuple(crossings))

    def with_weight(self, scheme: str, layout: str, nbytes: int, stored: int) -> Receipt:
        """The same receipt with one more prepared weight."""
        added = Layout(scheme, layout, 1, nbytes, stored)
        kept = []
        for entry in self.layouts:
            if (entry.scheme, entry.layout) == (scheme, layout):
                added = Layout(scheme, layout, entry.weights + 1, entry.nbytes + nbytes, entry.stored + stored)
            else:
                kept.append(entry)
        return replace(self, layouts=(*kept, added))

    @property
    def nodes(self) -> int:
        """How many kernel calls one run makes."""
        return sum(line.count for line in self.lines)

    @property
    def moved(self) -> int:
        """How many of them run on another device."""
        return sum(line.count for line in self.lines if line.moved)

    def by_device(self) -> dict[str, int]:
        """Kernel calls per device."""
        totals: dict[str, int] = {}
        for line in self.lines:
            totals[line.device] = totals.get(line.device, 0) + line.count
        return totals

    def summary(self) -> str:
        """One sentence, such as "452 ops on cpu:0, 3 on sim:exact (moved); decomposed: linear x1"."""
        parts = [
            f"{n} {'op' if n == 1 else 'ops'} on {where}" + (" (moved)" if where != self.device else "")
            for where, n in self.by_device().items()
        ]
        text = ", ".join(parts) or "no ops"
        totals: dict[str, int] = {}
        for entry in self.decomposed:
            totals[entry.op] = totals.get(entry.op, 0) + entry.count
        if totals:
            text += "; decomposed: " + ", ".join(f"{op} x{n}" for op, n in totals.items())
        return text

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
