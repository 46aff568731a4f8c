"""The levels of a certificate: explicit lists in `data/levels.toml`, and which of them a run has reached."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from xinheng.core.errors import SettingsError
from xinheng.core.suite import Outcome, Verdict

from .. import data
from ..determinism import PROMISED_BY
from ..report.model import LedgerEntry, LevelResult, Missing
from .census import Cell, suite_of

SHOWN = 20
"""How many items of a cell are named where it is missing."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level.

    Attributes:
        title: what a device of this level does.
        determinism: what it has to declare at least.
        suites: those that have to pass.
        ops: what it asks for beyond the levels below.
        dtypes: in which of those that the device has.
    """

    name: str
    title: str
    determinism: str
    suites: tuple[str, ...]
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(resources.files(data).joinpath("levels.toml").read_text(encoding="utf-8"))


@cache
def levels() -> tuple[Level, ...]:
    """All levels, the lowest first."""
    return tuple(
        Level(
            one["name"],
            one["title"],
            one["determinism"],
            tuple(one["suites"]),
            tuple(one["ops"]),
            tuple(one["dtypes"]),
        )
        for one in _table()["level"]
    )


def version() -> int:
    """Of the lists: two results of one version ask for the same."""
    return int(_table()["version"])


def up_to(name: str) -> tuple[Level, ...]:
    """A level with those below it; SettingsError if there is none of that name."""
    names = [level.name for level in levels()]
    if name not in names:
        raise SettingsError(f"there is no level {name!r}; there are {', '.join(names)}")
    return levels()[: names.index(name) + 1]


def level_of(op: str) -> Level:
    """The level that first asks for an op."""
    return next(level for level in levels() if op in level.ops)


@dataclass(frozen=True, slots=True)
class Declared:
    """What a device says about itself: its dtypes, and the level of determinism it promises."""

    dtypes: frozenset[str]
    determinism: str = "D0"


def reached(
    outcomes: Iterable[Outcome],
    declared: Declared,
    expected: Mapping[Cell, int] | None = None,
    excused: Mapping[str, LedgerEntry] | None = None,
    top: str = "L4",
) -> tuple[LevelResult, ...]:
    """What each level up to `top` lacks.

    Args:
        outcomes: those of a run, or of all its shards.
        expected: how many items an op has in a dtype; where fewer were run, the level lacks them.
        excused: entries of the ledger that hold. What a level asks for has to pass all the same.
    """
    rows = _Rows(outcomes, declared, expected or {}, excused or {})
    results: list[LevelResult] = []
    for level in up_to(top):
        below = up_to(level.name)
        missing = [
            *rows.declaration(level),
            *(m for part in below for op in part.ops for m in rows.op(op, part, level)),
        ]
        missing += [m for name in level.suites if name != "ops" for m in rows.suite(name, level)]
        required = sum(rows.required(op) for part in below for op in part.ops)
        lacking = {(m.op, m.dtype) for m in missing if m.dtype}
        results.append(
            LevelResult(
                level=level.name,
                title=level.title,
                determinism=level.determinism,
                reached=not missing,
                passed=required - len(lacking),
                required=required,
                missing=tuple(missing),
            )
        )
    return tuple(results)


class _Rows:
    """Outcomes by what levels ask for."""

    def __init__(
        self,
        outcomes: Iterable[Outcome],
        declared: Declared,
        expected: Mapping[Cell, int],
        excused: Mapping[str, LedgerEntry],
    ) -> None:
        self._declared, self._expected, self._excused = declared, expected, excused
        self._suites: dict[str, list[Outcome]] = {}
        self._cells: dict[Cell, list[Outcome]] = {}
        for outcome in outcomes:
            suite = suite_of(outcome.id)
            self._suites.setdefault(suite, []).append(outcome)
            if suite == "ops":
                self._cells.setdefault((outcome.op, outcome.dtype), []).append(outcome)
        self._of_op: dict[str, list[Cell]] = {}
        for cell in sorted({*self._cells, *self._expected}):
            self._of_op.setdefault(cell[0], []).append(cell)

    def declaration(self, level: Level) -> Iterator[Missing]:
        """What the device would have to promise."""
        if self._declared.determinism < level.determinism:
            text = f"the device declares determinism {self._declared.determinism}, the level needs {level.determinism}"
            yield Missing(op="", reason=text)

    def required(self, op: str) -> int:
        """How many cells of an op count: those that the device does not lack by declaration."""
        return sum(not self._absent(cell) for cell in self._of_op.get(op, []))

    def op(self, op: str, part: Level, level: Level) -> Iterator[Missing]:
        """What a level lacks of an op that `part`, it or one below, asks for."""
        if op not in self._of_op:
            yield Missing(op=op, reason="was not run")
        for cell in self._of_op.get(op, []):
            if self._absent(cell):
                continue
            mandatory = cell[1] in part.dtypes
            made = self._cells.get(cell, [])
            reasons = {o.id: reason for o in made if (reason := self._against(o, mandatory, level)) is not None}
            if reasons:
                text = f"{len(reasons)} of {len(made)} items: {', '.join(dict.fromkeys(reasons.values()))}"
                yield Missing(op=op, dtype=cell[1], reason=text, items=tuple(reasons)[:SHOWN])
            elif len(made) < self._expected.get(cell, 0):
                yield Missing(op=op, dtype=cell[1], reason=f"{len(made)} of {self._expected[cell]} items were run")

    def suite(self, name: str, level: Level) -> Iterator[Missing]:
        """What a level lacks of another suite, as far as that is not about ops of higher levels."""
        above = selected_ops(levels()[len(up_to(level.name)) :])
        made = [o for o in self._suites.get(name, []) if o.op not in above]
        wrong = [o.id for o in made if self._against(o, True, level) is not None]
        if wrong or not made:
            text = f"{len(wrong)} of {len(made)} items of the suite" if made else "the suite was not run"
            yield Missing(op=name, reason=text, items=tuple(wrong[:SHOWN]))

    def _absent(self, cell: Cell) -> bool:
        if cell[1] not in self._declared.dtypes and cell[1] != "float32":
            return True
        made = self._cells.get(cell, [])
        return bool(made) and all(outcome.absent for outcome in made)

    def _against(self, outcome: Outcome, mandatory: bool, level: Level) -> str | None:
        """Why an outcome keeps a level from being reached; None if it does not."""
        entry = self._excused.get(outcome.id)
        if entry is not None:
            return f"the ledger calls it {entry.kind}" if mandatory else None
        if outcome.verdict is Verdict.PASS or outcome.absent:
            return None
        if PROMISED_BY.get(outcome.defect, "D0") > level.determinism:
            return None
        return outcome.defect or outcome.verdict.value


def selected_ops(names: Sequence[Level]) -> frozenset[str]:
    """The ops of some levels."""
    return frozenset(op for level in names for op in level.ops)
