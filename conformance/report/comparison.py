"""What changed between two reports: chip A and chip B, or driver N and driver N + 1. Regressions come first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from xinheng.core.suite import Outcome, Verdict

from .model import Report
from .view import bounds_text, replay

FACTOR = 2.0
"""An error that grows by more is a regression, even within its bound ..."""
FLOOR = 0.1
"""... if it is beyond this share of the bound; smaller errors depend on the order of sums only."""

BETTER = (Verdict.PASS, Verdict.BAD_CASE, Verdict.UNSUPPORTED, Verdict.FAIL, Verdict.OUT_OF_MEMORY, Verdict.HANG)
"""Verdicts from good to bad; a crash is worst."""


class Kind(StrEnum):
    """Of a change, most serious first. The first few are regressions."""

    LEVEL_LOST = "level lost"
    WORSE = "worse"
    DETERMINISM_LOST = "determinism lost"
    GONE = "no longer run"
    ERRORS_GREW = "errors grew"
    LEVEL_GAINED = "level gained"
    BETTER = "better"
    ERRORS_SHRANK = "errors shrank"
    NEW = "new"
    KERNEL = "other kernel"


REGRESSIONS = frozenset({Kind.LEVEL_LOST, Kind.WORSE, Kind.DETERMINISM_LOST, Kind.GONE, Kind.ERRORS_GREW})


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an op in a dtype, or in several; `op` is empty where it is about the whole device.

    Attributes:
        items: ids of the items that show it.
        replay: the command that runs the first of them again on the later device; empty where there are none.
        regression: it makes the comparison fail.
    """

    kind: Kind
    op: str
    dtype: str
    before: str
    after: str
    items: tuple[str, ...] = ()
    replay: str = ""
    regression: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two reports and what changed.

    Attributes:
        facts: name, before and after of what differs between the two runs, such as the driver.
        changes: regressions first.
    """

    before: Report
    after: Report
    facts: tuple[tuple[str, str, str], ...]
    changes: tuple[Change, ...]

    @classmethod
    def of(cls, before: Report, after: Report, factor: float = FACTOR) -> Comparison:
        """Compare two reports; errors that grow by more than `factor` are regressions.

        Items that are in one of them only are no regressions where the suites or what was chosen of them differ.
        """
        ours, theirs = ({o.id: o for o in report.outcomes} for report in (before, after))
        common = [(ours[id], theirs[id]) for id in ours.keys() & theirs.keys()]
        common.sort(key=lambda pair: pair[1].id)
        changes = [*_levels(before, after), *_verdicts(after, common), *_determinism(after, common)]
        same = before.suite_version == after.suite_version and before.scope == after.scope
        gone = [o for id, o in ours.items() if id not in theirs]
        new = [o for id, o in theirs.items() if id not in ours]
        changes += _grouped(Kind.GONE, gone, lambda o: (o.verdict.value, "not run"), regression=same)
        changes += _grouped(Kind.NEW, new, lambda o: ("not run", o.verdict.value))
        changes += [*_errors(before, after, factor), *_kernels(common)]
        order = list(Kind)
        changes.sort(key=lambda c: (not c.regression, order.index(c.kind), -len(c.items), c.op, c.dtype))
        return cls(before, after, tuple(_facts(before, after)), tuple(changes))

    @property
    def regressions(self) -> tuple[Change, ...]:
        """What makes it fail."""
        return tuple(change for change in self.changes if change.regression)

    @property
    def others(self) -> tuple[Change, ...]:
        """Changes that are none."""
        return tuple(change for change in self.changes if not change.regression)

    @property
    def headline(self) -> str:
        """The outcome in one sentence."""
        count = len(self.regressions)
        told = "No regressions" if not count else f"{count} regression{'s' if count > 1 else ''}"
        return f"{told}; {len(self.others)} other change{'' if len(self.others) == 1 else 's'}."

    def to_json(self) -> dict[str, Any]:
        """Plain data: the levels, what differs, and all changes."""
        return {
            "before": {"device": self.before.device.name, "level": self.before.badge, "digest": self.before.digest},
            "after": {"device": self.after.device.name, "level": self.after.badge, "digest": self.after.digest},
            "facts": {name: {"before": a, "after": b} for name, a, b in self.facts},
            "regressions": len(self.regressions),
            "changes": [asdict(change) for change in self.changes],
        }


def grew(before: float, after: float, factor: float = FACTOR) -> bool:
    """Whether an error in units of the bound is worth a word now and has grown by more than a factor."""
    return after > FLOOR and after > factor * before


def _levels(before: Report, after: Report) -> Iterator[Change]:
    old, new = before.level, after.level
    if old != new and (before.levels and after.levels):
        kind = Kind.LEVEL_LOST if new < old else Kind.LEVEL_GAINED
        yield Change(kind, "", "", before.badge, after.badge, regression=new < old)


def _verdicts(after: Report, common: Iterable[tuple[Outcome, Outcome]]) -> Iterator[Change]:
    texts: dict[str, tuple[str, str]] = {}
    worse: list[Outcome] = []
    better: list[Outcome] = []
    for a, b in common:
        if _rank(a) == _rank(b):
            continue
        excused = after.excused.get(b.id)
        told = f"{_word(b)} (known {excused.kind} of {excused.owner})" if excused else _word(b)
        texts[b.id] = (_word(a), told)
        (worse if _rank(b) > _rank(a) else better).append(b)
    yield from _grouped(Kind.WORSE, worse, lambda o: texts[o.id], regression=True, report=after)
    yield from _grouped(Kind.BETTER, better, lambda o: texts[o.id])


def _determinism(after: Report, common: Iterable[tuple[Outcome, Outcome]]) -> Iterator[Change]:
    lost: dict[str, str] = {}
    shown = []
    for a, b in common:
        missing = sorted(set(a.determinism) - set(b.determinism))
        if missing and a.verdict == b.verdict == Verdict.PASS:
            lost[b.id] = ", ".join(missing)
            shown.append(b)
    yield from _grouped(
        Kind.DETERMINISM_LOST, shown, lambda o: (f"{lost[o.id]} held", "not shown"), regression=True, report=after
    )


def _errors(before: Report, after: Report, factor: float) -> Iterator[Change]:
    old = {(s.op, s.dtype): s.worst for s in before.spreads}
    for spread in after.spreads:
        a, b = old.get((spread.op, spread.dtype)), spread.worst
        if a is None or (a > 1) != (b > 1) or not (grew(a, b, factor) or grew(b, a, factor)):
            continue
        kind = Kind.ERRORS_GREW if b > a else Kind.ERRORS_SHRANK
        old_text, new_text = f"{bounds_text(a)} bounds", f"{bounds_text(b)} bounds"
        yield Change(kind, spread.op, spread.dtype, old_text, new_text, regression=kind is Kind.ERRORS_GREW)


def _kernels(common: Iterable[tuple[Outcome, Outcome]]) -> Iterator[Change]:
    """One change per op and pair of kernels, in whatever dtypes."""
    found: dict[tuple[str, str, str], list[Outcome]] = {}
    for a, b in common:
        if a.kernel and b.kernel and a.kernel != b.kernel:
            found.setdefault((b.op, a.kernel, b.kernel), []).append(b)
    for (op, old, new), members in found.items():
        kinds = ", ".join(sorted({o.dtype for o in members}))
        yield Change(Kind.KERNEL, op, kinds, old, new, tuple(o.id for o in members))


def _grouped(
    kind: Kind,
    outcomes: Iterable[Outcome],
    texts: Callable[[Outcome], tuple[str, str]],
    *,
    regression: bool = False,
    report: Report | None = None,
) -> Iterator[Change]:
    """One change per op, dtype and pair of texts."""
    found: dict[tuple[str, str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.op, outcome.dtype, *texts(outcome)), []).append(outcome)
    for (op, kind_of_data, a, b), members in found.items():
        command = replay(report, members[0]) if report else ""
        yield Change(kind, op, kind_of_data, a, b, tuple(o.id for o in members), command, regression)


def _rank(outcome: Outcome) -> int:
    return BETTER.index(outcome.verdict) if outcome.verdict in BETTER else len(BETTER)


def _word(outcome: Outcome) -> str:
    return f"{outcome.verdict.value}: {outcome.defect}" if outcome.defect else outcome.verdict.value


def _facts(before: Report, after: Report) -> Iterator[tuple[str, str, str]]:
    a, b = (_flat(report) for report in (before, after))
    for name in dict.fromkeys((*a, *b)):
        old, new = a.get(name, "none"), b.get(name, "none")
        if old != new:
            yield name, old, new


def _flat(report: Report) -> Mapping[str, str]:
    device, modes = report.device, report.modes
    facts = {"suite version": report.suite_version, "device": device.name, "spec": device.spec}
    facts |= {"driver": device.driver, "plugin": f"{device.plugin} {device.plugin_version}", "host": device.platform}
    facts |= {"dtypes": ", ".join(device.dtypes), "numerics": modes.numerics, "graphs": modes.capture}
    facts |= {f"override of {op}": how for op, how in modes.overrides.items()}
    facts |= {f"declared {name}": str(value) for name, value in modes.arithmetic.items()}
    facts |= device.packages
    facts |= {name: str(value) for name, value in report.scope.model_dump(mode="json").items()}
    if report.fingerprint is not None:
        facts["fingerprint"] = str(report.fingerprint)
    return {name: value for name, value in facts.items() if value}
