"""The suite `supports`: cases in dtypes that their tables do not list, to find devices that lie about what they can.

A device may refuse each of them, properly. What it says that it supports it has to compute rightly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import GraphError
from xinheng.core.hal import Device, Numerics
from xinheng.core.ir import TensorType
from xinheng.core.ir.dtype import DTYPES, cast_to, float8_e4m3fn, float8_e5m2, float64, int8, int16, int32, int64, uint8
from xinheng.core.suite import Item, Outcome, Selection, Suite, Verdict

from ..case import Case, find
from ..cases import SAMPLES
from ..draw import stream
from ..examination import Examination
from ..operands import T

VARIED = (6, 50, 1000)
"""Samples of each op that are varied, by tier."""
FLOATS = (float64, float8_e4m3fn, float8_e5m2)
INTEGERS = (int64, int32, int16, int8, uint8)


@dataclass(frozen=True)
class Variant:
    """A case, and what is said behind its id about an operand of another integer type."""

    case: Case
    change: str = ""

    @property
    def id(self) -> str:
        return f"supports/{self.case.id}{f'/{self.change}' if self.change else ''}"


class SupportSuite(Suite):
    """For some samples of each op one item, or in the higher tiers one for each other dtype."""

    name: ClassVar[str] = "supports"

    def __init__(self, selection: Selection, numerics: Numerics | None = None) -> None:
        super().__init__(selection, numerics)
        self._items: list[Item] | None = None

    def items(self) -> Sequence[Item]:
        if self._items is None:
            made = [Item(variant.id, variant.case.op, variant.case.kind.name) for variant in self._variants()]
            self._items = [item for item in made if self.selection.admits(item)]
        return self._items

    def run(self, id: str, device: Device) -> Outcome:
        variant = parsed(id)
        made = Examination(variant.case, device, self.numerics, further=False).outcome()
        fine = made.verdict in (Verdict.UNSUPPORTED, Verdict.BAD_CASE)
        changes = {"verdict": Verdict.PASS, "defect": "", "useless": 0.0} if fine else {}
        return made.model_copy(update={"id": id, "digest": "", **changes})

    def _variants(self) -> Iterator[Variant]:
        for op in sorted(SAMPLES):
            if self.selection.ops is not None and op not in self.selection.ops:
                continue
            samples = sorted(SAMPLES[op], key=lambda sample: stream("varied", sample.id).random())
            for sample in samples[: VARIED[self.selection.tier]]:
                others = list(_others(next(iter(sample.cases(sample.tier)))))
                order = stream("variant", sample.id).permutation(len(others))
                legal = (others[i] for i in order if _fits(others[i]))
                yield from islice(legal, 1 if self.selection.tier == 0 else None)


def _others(case: Case) -> Iterator[Variant]:
    """The case in other float types, then with one operand in another integer type."""
    if case.sample.floats:
        yield from (Variant(replace(case, kind=kind)) for kind in FLOATS)
    for i, operand in enumerate(case.sample.operands):
        if isinstance(operand, T) and operand.dtype in INTEGERS:
            yield from (_changed(case, i, f"x{i}:{kind.name}") for kind in INTEGERS if kind is not operand.dtype)


def _changed(case: Case, index: int, change: str) -> Variant:
    operands = list(case.sample.operands)
    operands[index] = replace(operands[index], dtype=DTYPES[change.partition(":")[2]])
    return Variant(replace(case, sample=replace(case.sample, operands=tuple(operands))), change)


def _fits(variant: Variant) -> bool:
    """Whether the op takes such operands, and the numbers fit into them."""
    for operand in variant.case.sample.operands:
        if isinstance(operand, T) and operand.dtype in INTEGERS and operand.data.size:
            ends = np.iinfo(operand.dtype.numpy)
            if operand.data.min() < ends.min or operand.data.max() > ends.max:
                return False
    try:
        call = variant.case.call
        call.graph()
    except GraphError:
        return False
    # what has no infinity, such as float8_e4m3fn, cannot hold the numbers of some cases
    held = zip(call.values, call.types, strict=True)
    return all(_holds(kind, value) for value, kind in held if isinstance(kind, TensorType) and kind.dtype.is_float)


def _holds(kind: TensorType, value: NDArray[np.float64]) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.array_equal(cast_to(value, kind.dtype).astype(np.float64), value, equal_nan=True))


def parsed(id: str) -> Variant:
    """The variant of an id.

    Raises:
        GraphError: there is no such case.
    """
    parts = id.removeprefix("supports/").split("/")
    case = find("/".join(parts[:5]))
    if len(parts) == 5:
        return Variant(case)
    index, _, name = parts[5].partition(":")
    if len(parts) != 6 or not index[1:].isdigit() or int(index[1:]) >= len(case.sample.operands) or name not in DTYPES:
        raise GraphError(f"{id!r} is no item of the suite supports; its last part is not like x1:int64")
    return _changed(case, int(index[1:]), parts[5])
