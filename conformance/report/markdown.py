"""A report as a page of Markdown, short enough for a comment on a change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .model import Report
from .view import State, bounds_text, groups, headline, matrix, notes, percent

MOST = 20
"""Entries of one kind."""


def report_markdown(report: Report) -> str:
    """The summary: level, figures, what is missing, failures with commands, and the cells that are not green."""
    device, figures = report.device, report.figures
    parts = [f"# {device.name}: {report.badge}", f"**{headline(report)}**"]
    parts.append("\n".join(f"- {note}" for note in notes(report)[:MOST]))
    facts = [("Device", f"`{device.spec}`, {device.driver or 'no driver version'}")]
    facts += [("Plugin", f"{device.plugin} {device.plugin_version}"), ("Numerics", report.modes.numerics)]
    facts += [("Pass rate", percent(figures.pass_rate)), ("Known-failure debt", percent(figures.debt))]
    if report.selftest is not None:
        test = report.selftest
        told = f"{percent(test.kill_rate)}, with {test.false_alarms} false alarms in {test.correct_runs:,} runs"
        facts.append(("Seeded bugs this suite finds", told))
    facts.append(("Items", f"{figures.total:,} of {figures.expected:,}"))
    facts.append(("Suite", f"{report.suite_version}, {report.scope.tier} tier, {', '.join(report.scope.suites)}"))
    parts.append(_table(("", ""), facts))
    parts += [_levels(report), _failures(report), _ledger(report), _matrix(report)]
    parts.append(f"`{report.digest}`")
    return "\n\n".join(part for part in parts if part) + "\n"


def _levels(report: Report) -> str:
    if not report.levels:
        return ""
    rows = [(r.level, r.title, "✓" if r.reached else "✗", f"{r.passed} of {r.required}") for r in report.levels]
    text = f"## Levels\n\n{_table(('Level', '', 'Reached', 'Ops and dtypes'), rows)}"
    wanted = report.next_level
    if wanted is not None and wanted.missing:
        missing = [f"- `{gap.op}`{f' {gap.dtype}' if gap.dtype else ''}: {gap.reason}" for gap in wanted.missing]
        text += f"\n\nWhat unlocks {wanted.level}:\n\n{_cut(missing)}"
    return text


def _failures(report: Report) -> str:
    rows = []
    for group in groups(report, report.failures):
        told = f"- **{group.op}** {group.dtype}: {group.defect or group.verdict}, {len(group.outcomes)} items"
        told += f", {bounds_text(group.worst)} bounds" if group.worst is not None and group.worst > 1 else ""
        rows.append(f"{told}. {group.first.message}\n  `{group.replay}`")
    return f"## Failures\n\n{_cut(rows)}" if rows else ""


def _ledger(report: Report) -> str:
    rows = [(e.standing, f"`{e.id}`", e.kind, e.owner, e.issue, str(e.expires)) for e in report.ledger]
    if not rows:
        return ""
    table = _table(("Standing", "Item", "Class", "Owner", "Issue", "Expires"), rows[:MOST])
    more = f"\n\nand {len(rows) - MOST} more" if len(rows) > MOST else ""
    return f"## Known failures\n\n{table}{more}"


def _matrix(report: Report) -> str:
    made = matrix(report)
    rows = [
        (f"`{row.op}`", *(f"{cell.symbol} {cell.passed}/{cell.items}" if cell.items else "" for cell in row.cells))
        for row in made.rows
        if row.state in (State.FAILED, State.EXCUSED, State.UNSUPPORTED)
    ]
    if not rows:
        return ""
    used = [i for i in range(len(made.dtypes)) if any(row[i + 1] for row in rows)]
    table = _table(("Op", *(made.dtypes[i] or "–" for i in used)), [(r[0], *(r[i + 1] for i in used)) for r in rows])
    return f"## Ops that do not pass everywhere\n\n{table}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _cut(lines: Sequence[str]) -> str:
    more = [f"- and {len(lines) - MOST} more"] if len(lines) > MOST else []
    return "\n".join([*lines[:MOST], *more])
