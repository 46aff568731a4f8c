"""One case run again to be looked at: its operands, what was expected and what came, and where they differ most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.hal import Device, Numerics
from xinheng.core.ir import DType, StateType, TensorType
from xinheng.core.ops import OPSET
from xinheng.core.suite import Outcome

from ..bounds import limits
from ..bounds.rules import Rules
from ..call import Call
from ..case import find
from ..checks import Experiment
from ..examination import Examination
from ..programs import REFERENCE, programs

SHOWN = 8
"""Elements that are shown of each result."""


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a result: where it is, what came, what was expected, and the limits of correct kernels."""

    index: tuple[int, ...]
    got: float
    expected: float
    low: float
    high: float

    @property
    def admitted(self) -> bool:
        return self.low <= self.got <= self.high or bool(np.isnan(self.got) and np.isnan(self.expected))


@dataclass(frozen=True)
class Replay:
    """What there is to see of a case.

    Attributes:
        operands: pairs of a name and a summary, attributes included.
        results: by result, its elements that are furthest from what was expected; none if nothing came.
    """

    outcome: Outcome
    operands: tuple[tuple[str, str], ...]
    results: dict[str, tuple[Element, ...]]


def replay(id: str, device: Device, numerics: Numerics) -> Replay:
    """Run a case of the suite `ops` again, in this process.

    Raises:
        GraphError: there is no such case.
    """
    case = find(id)
    outcome = Examination(case, device, numerics).outcome()
    results: dict[str, tuple[Element, ...]] = {}
    if outcome.program:
        experiment = Experiment(case, device, numerics)
        made = experiment.run()
        rules = Rules.of(experiment.arithmetic, case.kind, case.structured)
        declared = experiment.arithmetic.programs if experiment.arithmetic else None
        known = dict(programs(case.call, rules, declared))
        expected = known.get(outcome.program, known[REFERENCE])
        results = {name: _furthest(want, got, kind) for name, want, got, kind in _parts(case.call, expected, made)}
    return Replay(outcome, tuple(_operands(case.call)), results)


def _operands(call: Call) -> Iterator[tuple[str, str]]:
    declared = OPSET[call.op].operands
    for i, (kind, value) in enumerate(zip(call.types, call.values, strict=True)):
        name = declared[min(i, len(declared) - 1)].name
        fields = getattr(value, "_fields", None)
        if fields is not None:
            yield from ((f"{name}.{field}", _summary(page)) for field, page in zip(fields, value, strict=True))
        else:
            yield name, f"{kind}: {_summary(value)}" if kind is not None else "none"
    yield from ((name, str(value)) for name, value in call.attributes.items())


def _summary(value: Any) -> str:
    array = np.asarray(value)
    if not array.size:
        return "empty"
    if array.size <= SHOWN:
        return np.array2string(array.reshape(-1), precision=6, max_line_width=200)
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return f"{array.size} elements, none finite"
    rest = f", {array.size - finite.size} not finite" if finite.size < array.size else ""
    return f"from {finite.min():.6g} to {finite.max():.6g}, mean {finite.mean():.6g}{rest}"


def _parts(call: Call, expected: Any, made: Any) -> Iterator[tuple[str, Any, NDArray[Any], DType]]:
    for i, (want, got, promised) in enumerate(zip(expected, made, call.result_types, strict=True)):
        if isinstance(promised, StateType):
            parts = zip(promised.parts, want, got, strict=True)
            yield from ((f"state {part.name}", w, np.asarray(g), part.dtype) for part, w, g in parts)
        elif isinstance(promised, TensorType):
            yield f"result {i}", want, np.asarray(got), promised.dtype


def _furthest(want: Any, got: NDArray[Any], kind: DType) -> tuple[Element, ...]:
    """Elements outside their limits first, then those furthest from what was expected in units of these."""
    low, high = limits(want, kind)
    values, out = np.asarray(getattr(want, "v", want), np.float64), got.astype(np.float64)
    if values.shape != out.shape or not out.size:
        return ()
    with np.errstate(all="ignore"):
        outside = np.maximum(low - out, out - high)
        share = np.abs(out - values) / np.maximum(high - low, np.finfo(np.float64).tiny)
    unlike = np.isnan(out) != np.isnan(values)
    rank = np.where(unlike, np.inf, np.where(outside > 0, 1 + outside, np.nan_to_num(share, posinf=1.0) * 1e-3))
    order = np.argsort(-rank.reshape(-1), kind="stable")[:SHOWN]
    places = [tuple(int(n) for n in np.unravel_index(i, out.shape)) for i in order]
    return tuple(Element(p, float(out[p]), float(values[p]), float(low[p]), float(high[p])) for p in places)
