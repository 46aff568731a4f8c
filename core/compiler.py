"""From a graph and a device to an executable: the whole pipeline, top to bottom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from .errors import SettingsError, UnsupportedOp, nearest
from .hal.device import Device, Numerics
from .hal.executable import Choice, Executable
from .hal.kernel import Refusal
from .hal.reference import ReferenceDevice
from .ir.graph import Graph, Node
from .ir.op import Op
from .ir.types import StateType, WeightType
from .ir.verify import verify
from .ops import OPSET
from .passes import decompose, simplify


def compile(
    graph: Graph,
    device: Device,
    *,
    bounds: Mapping[str, int] | None = None,
    fallback: Device | None = None,
    numerics: Numerics | None = None,
) -> Executable:
    """Make `graph` ready to run on `device`.

    For each node: a kernel of the device, else the op's decomposition, else `fallback`. Nothing is moved or decomposed
    without standing in the receipt.

    Args:
        bounds: the largest value of each symbolic size; a run beyond it is an error.
        fallback: a device for ops that `device` cannot run at all; None means that such an op is an error.
        numerics: the arithmetic mode, and overrides `op -> device | decompose | reference | @kernel-name`.

    Raises:
        GraphError: the graph is not well formed.
        UnsupportedOp: an op has no kernel and no decomposition here and there is no fallback.
        SettingsError: an override names an unknown op or an impossible choice.
    """
    overrides = (numerics or Numerics()).overrides
    verify(graph)
    _check_overrides(overrides, {**OPSET, **{node.op.name: node.op for node in graph.nodes}}, device)
    whole = decompose(graph, lambda node: _runs(node, device, overrides))
    lowered = simplify(whole)
    places = [_place(node, device, fallback, overrides) for node in lowered.nodes]
    executable = device.compile(lowered, places, bounds or {})
    gone = Counter(n.op.name for n in graph.nodes) - Counter(n.op.name for n in whole.nodes)
    lost = tuple(sorted(gone.items()))
    executable.receipt = replace(executable.receipt, decomposed=lost, notes=device.notes())
    return executable


def _check_overrides(overrides: Mapping[str, str], ops: Mapping[str, Op[..., Any]], device: Device) -> None:
    for op, choice in overrides.items():
        if op not in ops:
            raise SettingsError(f"runtime.overrides: unknown op {op!r}{nearest(op, list(ops))}")
        if choice not in ("device", "decompose", "reference") and not choice.startswith("@"):
            raise SettingsError(
                f"runtime.overrides.{op}: {choice!r} is not device, decompose, reference or @kernel-name"
            )
        if choice == "decompose" and not ops[op].composite:
            raise SettingsError(f"runtime.overrides.{op}: a primitive op has no decomposition")
        names = [kernel.name for kernel in device.kernels.candidates(op)]
        if choice.startswith("@") and choice[1:] not in names:
            hint = nearest(choice[1:], names) or f"; it has {', '.join(names) or 'none'}"
            raise SettingsError(f"runtime.overrides.{op}: {device.spec} has no kernel {choice[1:]!r}{hint}")


def _runs(node: Node, device: Device, overrides: Mapping[str, str]) -> bool:
    """Whether a node stays as it is rather than being decomposed."""
    choice = overrides.get(node.op.name)
    if choice == "decompose":
        return False
    if choice is not None:
        return True
    return device.kernels.select(node)[0] is not None


def _place(node: Node, device: Device, fallback: Device | None, overrides: Mapping[str, str]) -> Choice:
    choice = overrides.get(node.op.name)
    only = choice[1:] if choice is not None and choice.startswith("@") else None
    refusals: list[Refusal] = []
    if choice == "reference":
        fallback = _reference()
        refusals.append(Refusal("device", "the override asks for the reference"))
    else:
        kernel, refusals = device.kernels.select(node, only)
        if kernel is not None:
            return Choice(kernel, device, tuple(refusals))
        if choice is not None:
            fallback = None
    bound = [
        v.type for v in (*node.operands, *node.results) if v is not None and isinstance(v.type, StateType | WeightType)
    ]
    if fallback is not None and not bound:
        kernel, more = fallback.kernels.select(node)
        if kernel is not None:
            return Choice(kernel, fallback, tuple(refusals))
        refusals.extend(more)
    reasons = "; ".join(f"{r.kernel}: {r.reason}" for r in refusals) or "it has no kernel for it"
    if bound:
        advice = "its state and weights cannot move to another device"
    elif choice is not None:
        advice = f"take {choice!r} out of runtime.overrides"
    else:
        advice = "set runtime.fallback to cpu or reference" if fallback is None else f"neither can {fallback.spec}"
    raise UnsupportedOp(f"{device.spec} cannot run {node.op.name} on {_operands(node)} ({reasons}); {advice}")


@cache
def _reference() -> ReferenceDevice:
    return ReferenceDevice()


def _operands(node: Node) -> str:
    return ", ".join("none" if v is None else str(v.type) for v in node.operands)
