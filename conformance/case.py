"""Cases: what is run on a device. A sample is a call with free numbers; in a dtype, drawn from a seed, it is a case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from xinheng.core.errors import GraphError, nearest
from xinheng.core.ir import DType
from xinheng.core.ir.dtype import DTYPES, bfloat16, float16, float32
from xinheng.core.ops import OPSET

from .call import Call
from .draw import DISTRIBUTIONS, GIVEN, SPECIALS, USUAL
from .layout import Layout
from .operands import FLOAT, MOVING, Drawn, Patterns, own_dtype, realise, shape_of


class Tier(IntEnum):
    """How much is run: the default takes minutes, the full tier an hour, the exhaustive one as long as it takes."""

    DEFAULT = 0
    FULL = 1
    EXHAUSTIVE = 2


FLOATS: Sequence[DType] = (float32, float16, bfloat16)
"""The dtypes that a sample with floats runs in unless it says otherwise."""

SHORT = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}
"""Names of dtypes in ids; others are called as they are."""


@dataclass(frozen=True)
class Sample:
    """A call of an op in the tables of `cases`.

    Attributes:
        label: the third part of ids of its cases, unique among the samples of its op.
        operands: what `operands` declares; a number or None stands for itself.
        special: its values are extreme, so that bounds may be wide.
        data: the distributions it runs in.
        seeds: how many seeds of each in the default tier, and how many in the full tier.
        kinds: the float dtypes it runs in.
        tier: the smallest tier that has it.
        layout: how its tensors lie in memory.
    """

    op: str
    label: str
    operands: tuple[Any, ...]
    attributes: dict[str, Any]
    special: bool = False
    data: tuple[str, ...] = (GIVEN,)
    seeds: tuple[int, int] = (1, 4)
    kinds: tuple[DType, ...] = tuple(FLOATS)
    tier: Tier = Tier.DEFAULT
    layout: Layout = Layout.WHOLE

    @property
    def id(self) -> str:
        return f"{self.op}/{self.label}"

    @property
    def floats(self) -> bool:
        """Whether it runs in several dtypes."""
        moving = any(isinstance(x, MOVING) for x in self.operands)
        return moving or any(value is FLOAT for value in self.attributes.values())

    @property
    def free(self) -> bool:
        """Whether any of its numbers are drawn."""
        return any(isinstance(x, Drawn | Patterns) for x in self.operands)

    @property
    def own(self) -> DType:
        """The dtype that stands in the ids of a sample that runs in one only."""
        fixed = [kind for x in self.operands if (kind := own_dtype(x)) is not None]
        named = [v for v in self.attributes.values() if isinstance(v, DType)]
        return (fixed or named or [float32])[0]

    def case(self, kind: DType = float32, data: str | None = None, seed: int = 0) -> Case:
        """This sample in a dtype; `kind` is that of its floats and says nothing if it has none."""
        return Case(self, kind if self.floats else self.own, data or self.data[0], seed)

    def in_dtype(self, kind: DType) -> Call:
        """Its first case in a dtype, ready to run."""
        return self.case(kind).call

    def cases(self, tier: Tier = Tier.DEFAULT) -> Iterable[Case]:
        """All its cases in a tier."""
        if self.tier > tier:
            return
        seeds = self.seeds[min(tier, Tier.FULL)] if self.free else 1
        for kind in self.kinds if self.floats else (self.own,):
            for data in self.data:
                for seed in range(seeds):
                    yield Case(self, kind, data, seed)


@dataclass(frozen=True)
class Case:
    """A sample in one dtype, with one distribution and seed: all that is needed to build it again anywhere."""

    sample: Sample
    kind: DType
    data: str
    seed: int

    @property
    def id(self) -> str:
        """Op, dtype, shape, distribution and seed, such as `rms_norm/bf16/T7xD4096/outliers/3`."""
        kind = SHORT.get(self.kind.name, self.kind.name)
        return f"{self.sample.op}/{kind}/{self.sample.label}/{self.data}/{self.seed}"

    @property
    def op(self) -> str:
        return self.sample.op

    @property
    def structured(self) -> bool:
        """Rounding errors of its numbers do not average out."""
        return self.data in DISTRIBUTIONS and DISTRIBUTIONS[self.data].structured

    @cached_property
    def call(self) -> Call:
        """Its operands, drawn and rounded to their dtypes."""
        sample, kind = self.sample, self.kind
        key = (sample.op, kind.name, sample.label, self.data, self.seed)
        given = [realise(x, kind, f"x{i}", key, self.data) for i, x in enumerate(sample.operands)]
        attributes = {name: kind if value is FLOAT else value for name, value in sample.attributes.items()}
        sources = tuple(source for *_, source in given if source is not None)
        types = tuple(t for t, *_ in given)
        values = tuple(value for _, value, _ in given)
        return Call(self.id, sample.op, kind, types, values, attributes, sources, sample.layout)


SAMPLES: dict[str, list[Sample]] = {}
"""All samples by op; the modules of `cases` fill it."""


def case(
    op: str,
    *operands: Any,
    note: str = "",
    label: str | None = None,
    special: bool = False,
    data: Sequence[str] = USUAL,
    seeds: tuple[int, int] = (1, 4),
    kinds: Sequence[DType] = FLOATS,
    tier: Tier = Tier.DEFAULT,
    layout: Layout = Layout.WHOLE,
    **attributes: Any,
) -> None:
    """Enter a sample in the table.

    It is called by `label`, or by the sizes of its operands, then by the note or the layout, and by the attributes
    where there is neither label nor note, or they are not enough.

    Raises:
        GraphError: there is no such op, or it has a sample of that label already.
    """
    if op not in OPSET:
        raise GraphError(f"there is no op {op!r} to make a case of{nearest(op, list(OPSET))}")
    note = note or ("" if label or layout is Layout.WHOLE else layout.value)
    free = any(isinstance(x, Drawn) and x.fixed is None for x in operands)
    taken = {s.label for s in SAMPLES.get(op, [])}
    name = _label(operands, note, label, {} if note or label else attributes)
    if name in taken:
        name = _label(operands, note, label, attributes)
    if name in taken:
        raise GraphError(f"op {op!r} has two samples {name!r}; give one of them a note")
    chosen = tuple(data) if free else (SPECIALS if special else GIVEN,)
    sample = Sample(op, name, operands, attributes, special, chosen, seeds, tuple(kinds), tier, layout)
    SAMPLES.setdefault(op, []).append(sample)


def _label(operands: Sequence[Any], note: str, label: str | None, attributes: dict[str, Any]) -> str:
    sizes = [s for x in operands if (s := shape_of(x)) is not None]
    parts = [label or ",".join("x".join(map(str, s)) or "scalar" for s in sizes[:2])]
    parts += [note.replace(" ", "-")] if note else []
    parts += [f"{name}={_word(value)}" for name, value in attributes.items() if value is not FLOAT]
    return "_".join(part for part in parts if part)


def _word(value: Any) -> str:
    return "x".join(map(_word, value)) if isinstance(value, tuple | list) else str(value).replace(" ", "")


def find(id: str) -> Case:
    """The case of an id.

    Raises:
        GraphError: the id is malformed, or there is no such op, dtype, sample or distribution.
    """
    parts = id.split("/")
    if len(parts) != 5 or not parts[4].isdigit():
        raise GraphError(f"{id!r} is no case id; one looks like rms_norm/bf16/7x64/normal/0")
    op, kind, label, data, seed = parts
    from . import cases as cases  # fills the table

    samples = SAMPLES.get(op, [])
    sample = next((s for s in samples if s.label == label), None)
    if sample is None:
        what = "op with cases" if not samples else f"sample of {op}"
        known = list(SAMPLES) if not samples else [s.label for s in samples]
        raise GraphError(f"case {id!r}: no {what} is called {op if not samples else label!r}{nearest(label, known)}")
    names = {short: name for name, short in SHORT.items()}
    name = names.get(kind, kind)
    if name not in DTYPES or (not sample.floats and DTYPES[name] is not sample.own):
        raise GraphError(f"case {id!r}: {sample.id} does not run in dtype {kind!r}")
    if data not in (*DISTRIBUTIONS, GIVEN, SPECIALS):
        raise GraphError(f"case {id!r}: no distribution is called {data!r}{nearest(data, list(DISTRIBUTIONS))}")
    return Case(sample, DTYPES[name], data, int(seed))
