"""What the commands of `xinheng conformance` print: progress while a suite runs, then what came of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xinheng.conformance.report import Report
    from xinheng.conformance.running.about import About
    from xinheng.conformance.running.runner import Watcher
    from xinheng.core.suite import Outcome

SHOWN = 10
"""Failures that are printed; the report has all of them."""


@contextmanager
def watched(quiet: bool = False) -> Iterator[Watcher | None]:
    """Progress on standard error while somebody looks at it; None where nobody does."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Bar(bars)


class _Bar:
    """A watcher that moves a bar, with the counts of verdicts beside it."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._task = bars.add_task("opening the device", total=None)
        self._counts: Counter[str] = Counter()

    def begin(self, about: About, workers: int, done: Sequence[Outcome], total: int) -> None:
        self._counts.update(outcome.verdict.value for outcome in done)
        self._bars.update(self._task, total=total, completed=len(done), description=about.header.name)

    def advance(self, outcome: Outcome) -> None:
        self._counts[outcome.verdict.value] += 1
        told = ", ".join(f"{n} {verdict}" for verdict, n in sorted(self._counts.items(), key=lambda pair: -pair[1]))
        self._bars.update(self._task, advance=1, description=f"{told}  {outcome.op}")


def show(report: Report, passed: bool, paths: Mapping[str, Path], json: bool = False) -> None:
    """Print what came of a run: for machines one object, for people what they have to know."""
    if json:
        from ...output import print_json

        print_json(summary(report, passed, paths))
        return
    {"test": _show_test, "support": _show_support, "perf": _show_perf}[report.scope.mode](report)
    for form, path in paths.items():
        print(f"{form}: {path}")


def summary(report: Report, passed: bool, paths: Mapping[str, Path]) -> dict[str, Any]:
    """The report without its outcomes, but with those that failed."""
    data = report.model_dump(exclude={"outcomes", "fingerprint", "spreads"}, mode="json")
    failures = [outcome.model_dump(exclude_defaults=True, mode="json") for outcome in report.failures]
    reached = {"passed": passed, "level": report.level, "badge": report.badge, "problems": list(report.problems)}
    return {**reached, **data, "failures": failures, "paths": {form: str(path) for form, path in paths.items()}}


def _show_test(report: Report) -> None:
    from xinheng.conformance.report.view import groups, headline, replay

    from ...output import print_table

    print(f"{report.device.name} ({report.device.spec}), {report.modes.numerics}: {headline(report)}")
    found = groups(report, report.failures)
    for group in found[:SHOWN]:
        first = group.first
        print(f"\n{len(group.outcomes)} x {first.op} {first.dtype}: {first.verdict.value} {first.defect}")
        print(f"  {first.id}: {first.message}")
        print(f"  {replay(report, first)}")
    if len(found) > SHOWN:
        print(f"\nand {len(found) - SHOWN} more kinds of failures; --report has all")
    for text in report.complaints:
        print(f"\n{text}")
    if report.levels:
        print()
        print_table(
            ("level", "", "cells", "reached", "what is missing first"),
            [
                (one.level, one.title, f"{one.passed}/{one.required}", "yes" if one.reached else "no", _first(one))
                for one in report.levels
            ],
        )
    figures = report.figures
    print(
        f"\n{figures.total} items in {report.seconds:.0f} s, pass rate {figures.pass_rate:.2%}, debt {figures.debt:.2%}"
    )


def _first(level: Any) -> str:
    if not level.missing:
        return ""
    first, more = level.missing[0], len(level.missing) - 1
    told = " ".join(part for part in (first.op, first.dtype) if part)
    return f"{f'{told}: ' if told else ''}{first.reason}{f' (and {more} more)' if more else ''}"


def _show_support(report: Report) -> None:
    from ...output import print_table

    cells: dict[str, dict[str, list[Outcome]]] = {}
    for outcome in report.outcomes:
        cells.setdefault(outcome.op, {}).setdefault(outcome.dtype, []).append(outcome)
    counts = Counter(kind for row in cells.values() for kind in row)
    kinds = sorted(counts, key=lambda kind: (-counts[kind], kind))
    print_table(("op", *kinds), [(op, *(_support(row.get(kind, [])) for kind in kinds)) for op, row in cells.items()])
    print("\nyes: a kernel; parts: by its decomposition; no: refused; n of m: depends on the call; -: no such dtype")


def _support(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return ""
    if all(outcome.absent for outcome in outcomes):
        return "-"
    able = [outcome for outcome in outcomes if outcome.verdict.value == "pass"]
    if len(able) < len(outcomes):
        return f"{len(able)} of {len(outcomes)}" if able else "no"
    return "yes" if all(outcome.measures.get("native") for outcome in able) else "parts"


def _show_perf(report: Report) -> None:
    from ...output import print_table

    names = ("microseconds", "gbps", "gflops", "bandwidth_share", "arithmetic_share")
    rows = [
        (o.id, o.kernel, *(o.measures.get(name, "") for name in names), "" if o.worst is None else o.worst)
        for o in report.outcomes
    ]
    print_table(("case", "kernel", "µs", "GB/s", "GFLOP/s", "of bandwidth", "of arithmetic", "error / bound"), rows)
