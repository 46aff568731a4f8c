"""The fingerprint of a device: how it computes, deduced from what it computes, and held against what it declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict

from xinheng.core.errors import XinhengError
from xinheng.core.hal import ANY_ORDER, Arithmetic, Device, Numerics
from xinheng.core.ir import DType
from xinheng.core.ir.dtype import float32

from ..bounds.rules import Rules
from . import experiments
from .experiments import GRADED, SIXTEEN
from .traits import UNKNOWN, Accumulator, Grade, Summation, Trait
from .workbench import ADDING, Workbench

P = ParamSpec("P")
T = TypeVar("T", bound=Trait)


class Fingerprint(BaseModel):
    """How a device computes.

    Attributes:
        device: its spec.
        accumulator: by op and dtype of the terms, such as "matmul bfloat16", the format of sums.
        summation: by op, the order in which float32 terms are added.
        inputs: to what matrix products cut float32 operands.
        fused: "matmul" and "mul and add": whether a product and a sum are rounded once.
        flush_inputs, flush_results: by dtype, whether subnormal numbers become zero.
        overflow: by dtype, what results beyond the range become.
        rounding: by dtype, how results are rounded when they are stored.
        grades: by function, its accuracy in float32.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str
    accumulator: dict[str, Accumulator]
    summation: dict[str, Summation]
    inputs: Trait
    fused: dict[str, Trait]
    flush_inputs: dict[str, Trait]
    flush_results: dict[str, Trait]
    overflow: dict[str, Trait]
    rounding: dict[str, Trait]
    grades: dict[str, Grade]

    def traits(self) -> Iterator[tuple[str, Trait]]:
        """All properties by name, such as "overflow float16"."""
        for field in type(self).model_fields:
            found = getattr(self, field)
            if isinstance(found, Trait):
                yield field, found
            elif isinstance(found, dict):
                yield from ((f"{field} {key}".replace("_", " "), trait) for key, trait in found.items())

    def __str__(self) -> str:
        """Everything in one line; what is unknown is left out."""
        found_out = {name: kept for name, kept in self.accumulator.items() if not kept.exact}
        parts = [
            f"sums in {_merged(found_out or self.accumulator)}",
            f"added {_merged(self.summation)}",
            f"operands cut: {self.inputs.value}",
            f"fused: {_merged(self.fused)}",
            f"subnormals flushed: operands {_merged(self.flush_inputs)}, results {_merged(self.flush_results)}",
            f"overflow: {_merged(self.overflow)}",
            f"rounding: {_merged(self.rounding)}",
            ", ".join(f"{name} {grade.value}" for name, grade in self.grades.items() if grade.known),
        ]
        return f"{self.device}: {'; '.join(part for part in parts if part)}"


def _merged(traits: Mapping[str, Trait]) -> str:
    """The values of several traits, each once, with the names of those that have it unless all have."""
    by_value: dict[str, list[str]] = {}
    for name, trait in traits.items():
        if trait.known:
            by_value.setdefault(trait.value, []).append(name)
    if len(by_value) <= 1:
        return next(iter(by_value), UNKNOWN)
    return ", ".join(f"{value} ({', '.join(names)})" for value, names in by_value.items())


def fingerprint(device: Device, numerics: Numerics | None = None) -> Fingerprint:
    """Find out how a device computes, by a few dozen small graphs that are compiled and run like any other.

    What a device refuses to run is unknown, for the reason that it gives.
    """
    bench = Workbench(device, numerics)
    kinds = (float32, *SIXTEEN)

    def by_dtype(experiment: Callable[[Workbench, DType], Trait]) -> dict[str, Trait]:
        return {kind.name: _seen(Trait, experiment, bench, kind) for kind in kinds}

    kept = {
        f"{op} {kind.name}": _seen(Accumulator, experiments.accumulator, partial(bench.sums, op), kind)
        for op in ADDING
        for kind in kinds
    }
    cut = _seen(Trait, experiments.inputs, bench, kept["matmul float32"])
    return Fingerprint(
        device=device.spec,
        accumulator=kept,
        summation={
            op: _seen(Summation, experiments.summation, partial(bench.sums, op), kept[f"{op} float32"]) for op in ADDING
        },
        inputs=cut,
        fused={
            "matmul": _seen(Trait, experiments.products, bench, cut),
            "mul and add": _seen(Trait, experiments.contraction, bench),
        },
        flush_inputs=by_dtype(experiments.flush_inputs),
        flush_results=by_dtype(experiments.flush_results),
        overflow=by_dtype(experiments.overflow),
        rounding=by_dtype(lambda bench, kind: experiments.rounding(bench, kind, kept[f"matmul {kind.name}"])),
        grades={op: _seen(Grade, experiments.grade, bench, op) for op in GRADED},
    )


def _seen(kind: type[T], experiment: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return experiment(*args, **kwargs)
    except XinhengError as reason:
        return kind(value=UNKNOWN, evidence=str(reason))


def contradictions(fingerprint: Fingerprint, arithmetic: Arithmetic | None) -> list[str]:
    """What a device does otherwise than it declares, a sentence each; a device that declares nothing promises float32
    sums in any order, rounded and with the range that the formats have."""
    declared = arithmetic or Arithmetic(depth=ANY_ORDER)
    return [
        *_sums(fingerprint, declared),
        *_orders(fingerprint, declared),
        *_operands(fingerprint, declared),
        *_range(fingerprint, declared),
        *_accuracy(fingerprint, declared),
    ]


def _sums(found: Fingerprint, declared: Arithmetic) -> Iterator[str]:
    for name, kept in found.accumulator.items():
        if kept.bits is None:
            continue
        narrowest = min(declared.accumulate.precision, (declared.partial or declared.accumulate).precision)
        if kept.bits < (narrowest if declared.chunk == 1 else declared.accumulate.precision) and not kept.exact:
            yield f"declares sums in {declared.accumulate}, but {name} keeps {kept.value}: {kept.evidence}"
        elif kept.partial is not None and kept.partial < narrowest:
            what = f"partial sums in {declared.partial}" if declared.partial else "no narrower partial sums"
            yield f"declares {what}, but {name} keeps {kept.value}: {kept.evidence}"
        elif kept.chunk is not None and declared.partial is not None and kept.chunk < declared.chunk:
            yield f"declares a rounding every {declared.chunk} terms, but {name} rounds every {kept.chunk}"


def _orders(found: Fingerprint, declared: Arithmetic) -> Iterator[str]:
    rules = Rules.of(declared)
    for op, order in found.summation.items():
        if order.depth is None or order.terms is None:
            continue
        longest = rules.longest(order.terms - 1)
        if order.depth > longest:
            yield (
                f"declares blocks of {declared.depth}, chains of at most {longest} additions in {order.terms} terms, "
                f"but {op} is {order.value}, with {order.evidence}"
            )


def _operands(found: Fingerprint, declared: Arithmetic) -> Iterator[str]:
    bits = {"none": 24, "HF32": 12, "TF32": 11, "bfloat16": 8}
    promised = declared.inputs.precision if declared.inputs is not None else 24
    kept = bits.get(found.inputs.value) or int(found.inputs.value.split()[0]) if found.inputs.known else 24
    if kept < promised:
        what = f"cut to {declared.inputs}" if declared.inputs is not None else "read whole"
        yield f"declares operands {what}, but they are cut to {found.inputs.value}: {found.inputs.evidence}"


def _range(found: Fingerprint, declared: Arithmetic) -> Iterator[str]:
    for what, traits in (("operands", found.flush_inputs), ("results", found.flush_results)):
        for kind, trait in traits.items():
            if not declared.flush and trait.known and trait.value != "no":
                yield f"declares no flush, but subnormal {kind} {what} become zero: {trait.evidence}"
    wanted = "saturate" if declared.saturate else "infinity"
    for kind, trait in found.overflow.items():
        if trait.known and trait.value != wanted:
            what = "saturation" if declared.saturate else "overflow to infinity"
            yield f"declares {what}, but {kind} gives {trait.value}: {trait.evidence}"


def _accuracy(found: Fingerprint, declared: Arithmetic) -> Iterator[str]:
    for kind, trait in found.rounding.items():
        if trait.known and trait.value != "half-even":
            yield f"results in {kind} are not rounded half to even but {trait.value}: {trait.evidence}"
    for op, grade in found.grades.items():
        if grade.ulps is not None and grade.ulps > declared.ulps:
            yield f"declares functions good to {declared.ulps:g} ulp, but {op} is {grade.value}: {grade.evidence}"
