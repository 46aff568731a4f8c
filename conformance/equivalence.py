"""Three-way equivalence of composites: the fused kernel, its decomposition on the same device, and the reference.

Where two of the three agree, the third is wrong. Each is judged by bounds of its own: the kernel by the programs of its
op, the decomposition by the same steps on operands with errors, each step rounded to its dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from xinheng.core.errors import UnsupportedOp
from xinheng.core.hal import Device, Numerics
from xinheng.core.ir import Node, StateType, TensorType, WeightType, evaluate
from xinheng.core.ir.dtype import round_to
from xinheng.core.ir.evaluate import resolve
from xinheng.core.ir.numeric import store
from xinheng.core.ops import OPSET
from xinheng.core.passes import decompose

from .bounds import Bounded, MissingRule, Rules
from .call import Call
from .checks import blamed
from .choices import CHOICES
from .judge import against, judge
from .mirror import mirrored
from .trial import Trial, kernels_of

DECOMPOSITION = "decomposition"
"""The program of the steps that an op is made of."""


class Relation(StrEnum):
    """Who is wrong."""

    AGREED = "agreed"
    FUSED = "fused kernel wrong"
    PRIMITIVE = "primitive wrong"
    DISPUTED = "reference disputed"
    """Kernel and decomposition agree with each other, but not with the reference."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a three-way comparison.

    Attributes:
        kernel: who computed the op, from the receipt.
        worst: largest error of the kernel in units of its bound.
        message: a sentence on what is off by how much; empty where all agree.
    """

    relation: Relation
    kernel: str
    worst: float
    message: str = ""


class Incomparable(UnsupportedOp):
    """A device has no kernel of its own for an op, or no decomposition: there are no three to compare."""


def compare(call: Call, device: Device, numerics: Numerics, structured: bool = False) -> Comparison:
    """Compare the ways to compute a composite.

    Raises:
        Incomparable: the device has only one of the two.
        UnsupportedOp: it has neither.
        DeviceError: it failed to run one.
    """
    arithmetic = device.capabilities.arithmetic
    rules = Rules.of(arithmetic, call.kind, structured)
    declared = arithmetic.programs if arithmetic is not None else None
    kernel, fused = _run(call, device, numerics)
    apart = Numerics(numerics.mode, {**numerics.overrides, call.op: "decompose"})
    try:
        _, parts = _run(call, device, apart)
    except UnsupportedOp as error:
        raise Incomparable(f"{device.spec} cannot run what {call.op} is made of: {error}") from None
    stored = Rules.of(arithmetic, call.kind, structured, stepwise=True)
    steps = _steps(call, stored)
    whole, split = judge(call, fused, rules, declared), judge(call, parts, stored, declared)
    if not split.ok and steps is not None:
        split = min(split, against(DECOMPOSITION, call, steps, parts), key=lambda j: not j.ok)
    if whole.ok and split.ok:
        return Comparison(Relation.AGREED, kernel, whole.worst)
    wrong = list(_wrong_primitives(call, device, numerics)) if not split.ok else []
    if wrong:
        told = "; ".join(wrong) + ("" if whole.ok else f"; the fused kernel is off too: {whole.message}")
        return Comparison(Relation.PRIMITIVE, kernel, whole.worst, told)
    if not whole.ok and _agree(call, fused, parts, steps):
        told = f"the decomposition gives what the kernel gives; by the reference, {whole.message}"
        return Comparison(Relation.DISPUTED, kernel, whole.worst, told)
    if whole.ok:
        told = f"each step is right, but together they are off: {split.message}"
        return Comparison(Relation.PRIMITIVE, kernel, whole.worst, told)
    return Comparison(Relation.FUSED, kernel, whole.worst, whole.message)


def _run(call: Call, device: Device, numerics: Numerics) -> tuple[str, tuple[Any, ...]]:
    """The kernels and the results of one way; Incomparable if the op was to be fused and is not."""
    with blamed(device, "could not compute it"):
        trial = Trial(call, device, numerics)
        if trial.decomposed and numerics.overrides.get(call.op) != "decompose":
            raise Incomparable(f"{device.spec} has no kernel of its own for {call.op}, which it runs decomposed")
        return kernels_of(trial.executable.receipt, call.op), trial.run()


def _steps(call: Call, rules: Rules) -> tuple[Any, ...] | None:
    """What the decomposition may give: its steps on bounded operands, each stored in its dtype.

    None where there is no such bound: of choices, and of steps without error rules.
    """
    if call.op in CHOICES:
        return None
    given = {f"x{i}": x for i, x in enumerate(call.operands(replace(rules, evaluate=False)))}

    def stored(node: Node, made: tuple[Any, ...]) -> tuple[Any, ...]:
        kinds = [r.type.dtype if isinstance(r.type, TensorType) else None for r in node.results]
        return tuple(store(x, kind) if isinstance(x, Bounded) else x for x, kind in zip(made, kinds, strict=True))

    try:
        with mirrored(call.attributes):
            outputs, states = evaluate(call.graph(expanded=True), given, given, given, stored)
    except MissingRule:
        return None
    writes = any(isinstance(kind, StateType) for kind in call.result_types)
    return (*outputs.values(), *(states.values() if writes else ()))


def _agree(call: Call, fused: tuple[Any, ...], parts: tuple[Any, ...], steps: tuple[Any, ...] | None) -> bool:
    """Whether kernel and decomposition differ by no more than two correct ways to compute the same may."""
    if steps is None:
        return all(np.array_equal(a, b) for a, b in zip(_flat(fused), _flat(parts), strict=True))
    middle = tuple(
        type(got)(*(_around(x, w) for x, w in zip(got, want, strict=True)))  # the pages of a state
        if hasattr(got, "_fields")
        else _around(got, want)
        for got, want in zip(parts, steps, strict=True)
    )
    return against(DECOMPOSITION, call, middle, fused).ok


def _around(got: Any, want: Any) -> Any:
    """A result with twice the error that it may have: the other one may have as much."""
    if not isinstance(want, Bounded):
        return got
    return Bounded(np.asarray(got, np.float64), 2 * want.e, want.rules)


def _flat(made: tuple[Any, ...]) -> Iterator[Any]:
    for x in made:
        yield from x if hasattr(x, "_fields") else (x,)


def _wrong_primitives(call: Call, device: Device, numerics: Numerics) -> Iterator[str]:
    """The steps of a call that the device computes wrong when each is given right operands, once per op."""
    told: set[str] = set()
    for step in _primitive_calls(call):
        if step.op in told:
            continue
        try:
            _, made = _run(step, device, numerics)
        except UnsupportedOp:
            continue  # it has a kernel for some larger step
        # operands of a step are no random numbers, so errors need not average out
        judgement = judge(step, made, Rules.of(device.capabilities.arithmetic, step.kind, structured=True))
        if not judgement.ok:
            told.add(step.op)
            yield f"{step.op}: {judgement.message}"


def _primitive_calls(call: Call) -> Iterator[Call]:
    """Each primitive that a call decomposes into, with the operands that the reference gives it, rounded."""
    graph = decompose(call.graph(), lambda node: not node.op.composite)
    given = {f"x{i}": value for i, value in enumerate(call.values)}
    sources = {source.name: source for source in call.sources}
    live: dict[int, Any] = {id(v): given[v.name] for v in (*graph.inputs, *graph.parameters)}
    live |= {id(state): given[state.name] for state, _ in graph.states}
    live |= {id(value): value.data for value in graph.constants}
    calls: list[Call] = []

    def record(node: Node, made: tuple[Any, ...]) -> tuple[Any, ...]:
        made = tuple(
            round_to(x, r.type.dtype) if isinstance(r.type, TensorType) and r.type.dtype.is_float else x
            for x, r in zip(made, node.results, strict=True)
        )
        live.update((id(r), x) for r, x in zip(node.results, made, strict=True))
        return made

    with mirrored(call.attributes):
        evaluate(graph, given, given, given, record)
    for number, node in enumerate(graph.nodes):
        kinds = [None if v is None or isinstance(v.data, int | float) else v.type for v in node.operands]
        floats = [t.dtype for t in (v.type for v in node.results) if isinstance(t, TensorType) and t.dtype.is_float]
        weights = [
            replace(sources[v.name], name=f"x{i}")
            for i, v in enumerate(node.operands)
            if v is not None and isinstance(v.type, WeightType)
        ]
        calls.append(
            Call(
                id=f"{call.id}#{number}",
                op=node.op.name,
                kind=floats[0] if floats else call.kind,
                types=tuple(kinds),
                values=tuple(None if v is None else live[id(v)] for v in node.operands),
                attributes={name: resolve(x, {}) for name, x in node.attributes.items()},
                sources=tuple(weights),
            )
        )
    return iter(calls)


def composites() -> list[str]:
    """The ops that have a decomposition."""
    return sorted(op.name for op in OPSET.values() if op.composite)
