"""Where each op of a graph runs: a kernel of the device, its decomposition, or a kernel of the fallback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from .errors import SettingsError, UnsupportedOp, nearest
from .hal.device import Device
from .hal.executable import Choice
from .hal.kernel import Refusal
from .hal.reference import ReferenceDevice
from .ir.graph import Graph, Node
from .ir.types import StateType, WeightType
from .ops import OPSET
from .passes import expansion, state_groups
from .receipt import Decomposed

_REFERENCE_ASKED = Refusal("device", "the override asks for the reference")
_DECOMPOSITION_ASKED = Refusal("device", "the override asks for the decomposition")


@dataclass(frozen=True, slots=True)
class Placer:
    """A device, the one that takes over what it lacks, and the wishes of the user for single ops."""

    device: Device
    fallback: Device | None
    overrides: Mapping[str, str]

    def check(self, graph: Graph) -> None:
        """SettingsError if an override names an unknown op, or asks for what its op or the device does not have."""
        ops = {**OPSET, **{node.op.name: node.op for node in graph.nodes}}
        for op, choice in self.overrides.items():
            if op not in ops:
                raise SettingsError(f"runtime.overrides: unknown op {op!r}{nearest(op, list(ops))}")
            if choice not in ("device", "decompose", "reference") and not choice.startswith("@"):
                raise SettingsError(
                    f"runtime.overrides.{op}: {choice!r} is not device, decompose, reference or @kernel-name"
                )
            if choice == "decompose" and not ops[op].composite:
                raise SettingsError(f"runtime.overrides.{op}: a primitive op has no decomposition")
            names = [kernel.name for kernel in self.device.kernels.candidates(op)]
            if choice.startswith("@") and choice[1:] not in names:
                hint = nearest(choice[1:], names) or f"; it has {', '.join(names) or 'none'}"
                raise SettingsError(f"runtime.overrides.{op}: {self.device.spec} has no kernel {choice[1:]!r}{hint}")

    def runs(self, node: Node) -> bool:
        """Whether the device has a kernel for a node, or the user wants the node as it is."""
        choice = self.overrides.get(node.op.name)
        return choice != "decompose" if choice is not None else self.device.supports(node)

    def keeps(self, node: Node) -> bool:
        """Whether a node stays as it is rather than being decomposed.

        An op goes to the fallback as a whole if the device runs nothing of what it decomposes into; and if it reads a
        weight or a state, also unless the device runs all of that: expanded elsewhere, these would cross in each run.
        """
        if self.runs(node):
            return True
        if not node.op.composite or node.op.name in self.overrides:
            return False
        if self.fallback is None or not self.fallback.supports(node):
            return False
        here = [self.runs(inner) for inner in expansion(node, self.runs).nodes]
        held = any(v is not None and isinstance(v.type, WeightType | StateType) for v in node.operands)
        return not all(here) if held else not any(here)

    def fusible(self, node: Node) -> bool:
        """Whether simpler ops may become this node."""
        return node.op.name not in self.overrides and self.device.supports(node)

    def decomposed(self, graph: Graph) -> tuple[Decomposed, ...]:
        """The composites of a graph that do not stay as they are, by op and reason."""
        counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        for node in graph.nodes:
            if node.op.composite and not self.keeps(node):
                asked = node.op.name in self.overrides
                refusals = [_DECOMPOSITION_ASKED] if asked else self.device.select(node)[1]
                counts[node.op.name, tuple((r.kernel, r.reason) for r in refusals)] += 1
        return tuple(Decomposed(op, count, refused) for (op, refused), count in sorted(counts.items()))

    def place(self, graph: Graph) -> dict[int, Choice]:
        """A kernel and its device for each node, by the identity of the node; all ops of a state on one device.

        Raises:
            UnsupportedOp: an op has no kernel anywhere, or the ops of a state have none on a common device.
        """
        groups = state_groups(graph)
        grouped = {id(node) for _, nodes in groups for node in nodes}
        alone = [((), [node]) for node in graph.nodes if id(node) not in grouped]
        found: dict[int, Choice] = {}
        for states, nodes in (*groups, *alone):
            found.update(self._settle(states, nodes) if nodes else {})
        return found

    def _places(self, node: Node) -> dict[Device, str | None]:
        """Where a node may run, best first, each with the only kernel that is admitted there."""
        choice = self.overrides.get(node.op.name)
        if choice == "reference":
            known = self.fallback is not None and self.fallback.spec == "reference"
            return {self.fallback if known and self.fallback is not None else _reference(): None}
        if choice is not None and choice != "decompose":
            return {self.device: choice[1:] if choice.startswith("@") else None}
        return {self.device: None} if self.fallback is None else {self.device: None, self.fallback: None}

    def _settle(self, states: Sequence[str], nodes: Sequence[Node]) -> dict[int, Choice]:
        """Kernels for nodes that have to be on one device: the first of their places that can run all of them."""
        places = [self._places(node) for node in nodes]
        refused = [[] if self.device in own else [_REFERENCE_ASKED] for own in places]
        able: list[list[Device]] = [[] for _ in nodes]
        for place in dict.fromkeys(d for own in places for d in own):
            pairs = zip(nodes, places, strict=True)
            found = [place.select(node, own[place]) if place in own else (None, []) for node, own in pairs]
            kernels = [kernel for kernel, _ in found]
            if place is self.device or not all(kernels):
                for told, (_, reasons) in zip(refused, found, strict=True):
                    told.extend(reasons)
            chosen = {
                id(node): Choice(kernel, place, tuple(told))
                for node, kernel, told in zip(nodes, kernels, refused, strict=True)
                if kernel is not None
            }
            if all(kernels):
                return chosen
            lacking = nodes[kernels.index(None)].op.name
            for kernel, told, can in zip(kernels, refused, able, strict=True):
                if kernel is not None:
                    can.append(place)
                    told.append(Refusal(kernel.name, f"{lacking} uses the same state and does not run on {place.spec}"))
        for node, own, told, can in zip(nodes, places, refused, able, strict=True):
            if not can:
                raise UnsupportedOp(self._unplaced(node, list(own), told))
        raise UnsupportedOp(_spread(states, nodes, able))

    def _unplaced(self, node: Node, places: Sequence[Device], refusals: Sequence[Refusal]) -> str:
        reasons = "; ".join(f"{r.kernel}: {r.reason}" for r in refusals) or "it has no kernel for it"
        operands = ", ".join("none" if v is None else str(v.type) for v in node.operands)
        choice = self.overrides.get(node.op.name)
        if choice is not None and choice != "decompose":
            advice = f"take {choice!r} out of runtime.overrides"
        elif len(places) == 1:
            advice = "set runtime.fallback to cpu or reference"
        else:
            advice = f"neither can {places[-1].spec}"
        return f"{self.device.spec} cannot run {node.op.name} on {operands} ({reasons}); {advice}"


def _spread(states: Sequence[str], nodes: Sequence[Node], able: Sequence[Sequence[Device]]) -> str:
    each = {
        node.op.name: " or ".join(dict.fromkeys(place.spec for place in can))
        for node, can in zip(nodes, able, strict=True)
    }
    told = "; ".join(f"{op} can only run on {where}" for op, where in each.items())
    return (
        f"state {', '.join(states)} cannot be on two devices ({told}); "
        "change runtime.overrides for all ops of a state alike"
    )


@cache
def _reference() -> ReferenceDevice:
    return ReferenceDevice()
