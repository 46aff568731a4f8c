"""A report as one HTML file that needs nothing else: no network, no fonts, no libraries."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from xinheng.core.suite import Verdict

from ..determinism import PROMISED_BY
from .chart import Axis, Curves, curves, histograms, lanes, points
from .comparison import Comparison, grew
from .measures import Walk, models, speeds, walks
from .model import LevelResult, Report
from .view import DTYPES, SYMBOLS, Matrix, State, bounds_text, groups, headline, matrix, notes, percent

if TYPE_CHECKING:
    from jinja2 import Environment

PACKAGE = __name__.rpartition(".")[0]
DETERMINISM = {
    "D1": "the same bits when repeated",
    "D2": "also in another process",
    "D3": "also row by row of a batch",
    "D4": "also from a captured graph",
}
"""What each level of determinism promises."""
MOST = 50
"""Entries of one kind on the page; the JSON file has all."""
TOP = 24
"""Ops that the plot of errors shows at once."""
WIDE = 8
"""Dtypes from which on a family takes the whole width."""
HEIGHT = 110
"""Of a histogram, in pixels."""


def report_html(report: Report) -> str:
    """The page for people who decide."""
    table = matrix(report)
    families = _families(table)
    colours = _colours(report)
    axis, small = Axis(190, 880), Axis(8, 300)
    passing = [o.worst for o in report.outcomes if o.worst is not None and o.verdict is Verdict.PASS]
    return page(
        "report.html.jinja",
        report=report,
        figures=report.figures,
        reached=next((r for r in report.levels if r.level == report.level), None),
        headline=headline(report),
        notes=notes(report)[:MOST],
        duration=_duration(report.seconds),
        worst=max(passing, default=None),
        failed=groups(report, report.failures),
        models=models(report),
        walks=[(walk, _walked(walk)) for walk in walks(report)],
        speeds=speeds(report),
        ledger=sorted(report.ledger, key=lambda e: (e.standing == "expected", e.expires, e.id)),
        matrix=table,
        narrow=[each for each in families if len(each[2]) <= WIDE],
        wide=[each for each in families if len(each[2]) > WIDE],
        states=[(s, symbol, table.count(s)) for s, symbol in SYMBOLS.items() if s is not State.NONE and table.count(s)],
        shown=lanes(report.spreads, axis),
        axis=axis,
        histograms=histograms(report.outcomes, small, HEIGHT, DTYPES),
        small=small,
        height=HEIGHT,
        colours=colours,
        top=TOP,
        most=MOST,
        suite=_suite(report),
        device=_device(report),
        modes=_modes(report),
        scope=_scope(report),
        determinism=_determinism(report),
        share=_share,
    )


def comparison_html(comparison: Comparison) -> str:
    """The page that shows two reports side by side, regressions first."""
    before, after = comparison.before, comparison.after
    axis = Axis(56, 480)
    differing = before.suite_version != after.suite_version
    versions = f"the suites differ, {before.suite_version} and {after.suite_version}" if differing else ""
    return page(
        "compare.html.jinja",
        comparison=comparison,
        versions=versions,
        points=points(before.spreads, after.spreads, axis, grew),
        axis=axis,
        colours=_colours(before) | _colours(after),
        most=MOST,
    )


def page(template: str, **values: Any) -> str:
    """A page from one of the templates, with what all of them use."""
    return _environment().get_template(template).render(values)


def stylesheet() -> str:
    """The style of all pages."""
    return resources.files(PACKAGE).joinpath("templates", "style.css").read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    from ..case import SHORT

    folder = resources.files(PACKAGE).joinpath("templates")
    made = Environment(loader=PackageLoader(PACKAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made.globals.update(
        words=tomllib.loads(folder.joinpath("words.toml").read_text(encoding="utf-8")),
        style=Markup(stylesheet()),
        error=bounds_text,
        percent=percent,
        date=lambda text: datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M UTC"),
        short=lambda kind: SHORT.get(kind, kind.replace("uint", "u").replace("int", "i")),
    )
    return made


def _colours(report: Report) -> dict[str, int]:
    """A colour and shape per dtype; those beyond the usual ones share the last."""
    found = {spread.dtype for spread in report.spreads if spread.worst > 0}
    usual = {kind: i for i, kind in enumerate(DTYPES) if kind in found}
    return usual | dict.fromkeys(sorted(found - set(DTYPES)), len(DTYPES))


def _families(table: Matrix) -> list[tuple[str, Sequence[Any], list[int]]]:
    """Families with the columns in which they have anything."""
    return [
        (family, rows, [i for i in range(len(table.dtypes)) if any(row.cells[i].items for row in rows)])
        for family, rows in table.families
    ]


def _share(result: LevelResult) -> int:
    return round(100 * result.passed / result.required) if result.required else 100 * result.reached


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _suite(report: Report) -> list[tuple[str, str]]:
    if (test := report.selftest) is None:
        return []
    rows = [("suite version", report.suite_version), ("seeded bugs found", f"{test.seeded_killed} of {test.seeded}")]
    if test.automatic:
        rows.append(("bugs made from decompositions", f"{test.automatic_killed} of {test.automatic} found"))
    rows.append(("correct kernels rejected", f"{test.false_alarms} of {test.correct_runs:,} runs"))
    return rows


def _device(report: Report) -> list[tuple[str, str]]:
    device = report.device
    plugin = f"{device.plugin} {device.plugin_version}"
    rows = [("device", device.spec), ("name", device.name), ("driver", device.driver), ("plugin", plugin)]
    rows += [("dtypes", ", ".join(device.dtypes)), ("host", device.platform)]
    rows += [(name, number) for name, number in device.packages.items()]
    return [(name, value) for name, value in rows if value]


def _modes(report: Report) -> list[tuple[str, str]]:
    modes = report.modes
    rows = [("numerics", modes.numerics), ("graphs", modes.capture), ("overrides", _pairs(modes.overrides) or "none")]
    return rows + [(f"declared {name}", _text(value)) for name, value in modes.arithmetic.items()]


def _walked(walk: Walk) -> Curves:
    return curves([walk.errors, walk.noise, [2 * x for x in walk.noise]], 56, 820, 200)


def _determinism(report: Report) -> list[tuple[str, str]]:
    rows = []
    for level, text in DETERMINISM.items():
        held = sum(level in o.determinism for o in report.outcomes)
        broken = sum(PROMISED_BY.get(o.defect) == level for o in report.outcomes)
        if held or broken:
            rows.append((f"{level}, {text}", f"{held:,} items hold" + (f", {broken:,} do not" if broken else "")))
    return rows


def _scope(report: Report) -> list[tuple[str, str]]:
    scope = report.scope
    rows = [("level", scope.level or "none asked for"), ("tier", scope.tier), ("suites", ", ".join(scope.suites))]
    rows += [("ops", ", ".join(scope.ops) or "all"), ("dtypes", ", ".join(scope.dtypes) or "all")]
    rows += [("options", _pairs(scope.options)), ("shard", scope.shard), ("suite version", report.suite_version)]
    return [(name, value) for name, value in rows if value]


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return _pairs(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return "none" if value is None else str(value)
