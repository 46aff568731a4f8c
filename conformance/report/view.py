"""What people look at in a report: op by dtype, failures in groups, levels with what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from xinheng.core.ops import FAMILIES, OPSET
from xinheng.core.suite import Outcome, Verdict

from .model import Report

DTYPES = ("float32", "float16", "bfloat16")
"""Columns that come first."""
OTHERS = "other suites"
"""The family of what is no op of the op set."""
ENDLESS = 1e6
"""Bounds from which on an error is called infinite."""


class State(StrEnum):
    """Of a cell of the matrix, worst first."""

    FAILED = "failed"
    EXCUSED = "excused"
    UNSUPPORTED = "unsupported"
    DECOMPOSED = "decomposed"
    PASSED = "passed"
    ABSENT = "absent"
    NONE = "none"


SYMBOLS = {
    State.FAILED: "✗",
    State.EXCUSED: "◐",
    State.UNSUPPORTED: "–",
    State.DECOMPOSED: "◇",
    State.PASSED: "✓",
    State.ABSENT: "∅",
    State.NONE: "",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """An op in a dtype: its state, how many items it has, and how many of them passed."""

    state: State
    items: int = 0
    passed: int = 0
    worst: float | None = None

    @property
    def symbol(self) -> str:
        return SYMBOLS[self.state]


@dataclass(frozen=True, slots=True)
class Row:
    """An op: a cell per column of its matrix."""

    op: str
    cells: tuple[Cell, ...]

    @property
    def state(self) -> State:
        """The worst of its cells."""
        return min((cell.state for cell in self.cells), key=list(State).index)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Ops by dtypes, family by family; rows with failures first."""

    dtypes: tuple[str, ...]
    families: tuple[tuple[str, tuple[Row, ...]], ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for _, rows in self.families for row in rows)

    def count(self, state: State) -> int:
        """How many cells are in a state."""
        return sum(cell.state is state for row in self.rows for cell in row.cells)


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of one op in one dtype with one defect; `replay` is the command that runs the first one again."""

    op: str
    dtype: str
    verdict: str
    defect: str
    outcomes: tuple[Outcome, ...]
    replay: str

    @property
    def first(self) -> Outcome:
        return self.outcomes[0]

    @property
    def worst(self) -> float | None:
        return max((o.worst for o in self.outcomes if o.worst is not None), default=None)


def headline(report: Report) -> str:
    """The outcome of a run in one sentence."""
    figures = report.figures
    ran, passed = figures.total - figures.absent, figures.verdicts.get(Verdict.PASS.value, 0)
    if not ran:
        return "Nothing was run."
    if report.scope.mode == "support":
        own = sum(o.measures.get("native", 0.0) == 1.0 for o in report.outcomes)
        return f"{passed:,} of {ran:,} items are supported, {own:,} of them by kernels of the device's own."
    if passed == ran:
        told = f"All {ran:,} items pass" if ran > 1 else "The only item passes"
        return f"{told}{', and yet the run fails:' if report.problems else '.'}"
    told = f"{passed:,} of {ran:,} items pass"
    if report.failures:
        told += f", {len(report.failures):,} fail"
    if figures.indebted:
        told += f", {figures.indebted:,} known failure{'s' if figures.indebted > 1 else ''}"
    return f"{told}."


def notes(report: Report) -> tuple[str, ...]:
    """What makes the run fail beside failing items, and what limits what it says."""
    told = list(report.complaints)
    if report.tolerated:
        told.append(
            f"failing items that break a promise of determinism which {report.scope.level} does not need: "
            f"{len(report.tolerated):,}"
        )
    if report.scope.narrowed:
        told.append("only a part of the suite was run, so that it decides no level")
    if report.device.emulated:
        told.append("the device is emulated: the result speaks of software, not of silicon")
    return tuple(told)


def matrix(report: Report) -> Matrix:
    """The matrix of a report. An item without a dtype stands in a column of its own."""
    cells: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in report.outcomes:
        cells.setdefault((outcome.op, outcome.dtype), []).append(outcome)
    found = {kind for _, kind in cells}
    dtypes = (*(k for k in DTYPES if k in found), *sorted(found - set(DTYPES)))
    rows: dict[str, list[Row]] = {}
    for op in dict.fromkeys(op for op, _ in cells):
        made = tuple(_cell(report, cells.get((op, kind), ())) for kind in dtypes)
        rows.setdefault(_family(op), []).append(Row(op, made))
    order = list(State)
    families = [
        (family, tuple(sorted(rows[family], key=lambda row: (order.index(row.state), row.op))))
        for family in (*FAMILIES, OTHERS)
        if family in rows
    ]
    families.sort(key=lambda pair: all(row.state is not State.FAILED for row in pair[1]))
    return Matrix(dtypes, tuple(families))


def groups(report: Report, outcomes: Iterable[Outcome]) -> tuple[Group, ...]:
    """Outcomes in groups, those of the device before those of the suite, larger groups first."""
    found: dict[tuple[str, str, str, str], list[Outcome]] = {}
    for o in outcomes:
        found.setdefault((o.op, o.dtype, o.verdict.value, o.defect), []).append(o)
    made = [Group(*key, tuple(members), replay(report, members[0])) for key, members in found.items()]
    made.sort(key=lambda g: (_severity(g.first.verdict), -len(g.outcomes), g.op, g.dtype))
    return tuple(made)


def replay(report: Report, outcome: Outcome) -> str:
    """The command that runs an item again as it was run."""
    words = ["xinheng", "conformance", "case", outcome.id, "--device", report.device.spec]
    if outcome.op not in OPSET:
        words += [word for pair in report.scope.options.items() for word in ("--option", "=".join(pair))]
    if report.modes.numerics != "strict":
        words += ["--set", f"runtime.numerics={report.modes.numerics}"]
    for op, how in report.modes.overrides.items():
        words += ["--set", f"runtime.overrides.{op}={how}"]
    return shlex.join(words)


def percent(share: float) -> str:
    """A share as text that never rounds to 0 % or 100 % what is neither."""
    digits = 0 if share in (0.0, 1.0) else 2
    shown = share * 100 if digits == 0 or share > 1 else min(max(share * 100, 0.01), 99.99)
    return f"{shown:.{digits}f}\N{NO-BREAK SPACE}%"


def bounds_text(worst: float | None) -> str:
    """An error in units of the bound, as text."""
    if worst is None:
        return ""
    return "∞" if worst >= ENDLESS else f"{worst:.3g}"


def _cell(report: Report, outcomes: Sequence[Outcome]) -> Cell:
    if not outcomes:
        return Cell(State.NONE)
    excused = report.excused
    passed = sum(o.verdict is Verdict.PASS for o in outcomes)
    worst = max((o.worst for o in outcomes if o.worst is not None), default=None)
    rest = [o for o in outcomes if o.verdict is not Verdict.PASS]
    open_ones = [o for o in rest if o.id not in excused and not o.absent]
    if any(o.verdict is not Verdict.UNSUPPORTED for o in open_ones):
        state = State.FAILED
    elif open_ones:
        state = State.UNSUPPORTED
    elif any(o.id in excused for o in rest):
        state = State.EXCUSED
    else:
        state = State.PASSED if passed else State.ABSENT
        if passed and not any(o.measures.get("native", 1.0) for o in outcomes if o.verdict is Verdict.PASS):
            state = State.DECOMPOSED
    return Cell(state, len(outcomes), passed, worst)


def _family(op: str) -> str:
    return next((family for family, members in FAMILIES.items() if any(op == o.name for o in members)), OTHERS)


def _severity(verdict: Verdict) -> int:
    order = (Verdict.CRASH, Verdict.HANG, Verdict.OUT_OF_MEMORY, Verdict.FAIL, Verdict.UNSUPPORTED, Verdict.BAD_CASE)
    return order.index(verdict)
