"""What follows from a run: the ledger is applied, levels are decided, and all of it becomes a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

from xinheng.core.errors import SettingsError
from xinheng.core.ops import OPSET
from xinheng.core.suite import Outcome, Selection

from ..case import Tier
from ..report.model import LedgerEntry, LevelResult, Report, Scope
from ..selftests.figures import published
from ..suites import load_suites
from . import levels
from .census import expected, suite_of
from .ledger import apply
from .levels import Declared, reached
from .plan import Plan, Shard, wanted
from .runner import Result


def suite_version() -> str:
    """Of what judges: this program, its op set and its levels. Results of one version can be compared item by item."""
    return f"{metadata.version('xinheng')}, op set {OPSET.version}, levels {levels.version()}"


def conclude(plan: Plan, result: Result, ledger: Sequence[LedgerEntry] = ()) -> Report:
    """The report of a finished run."""
    scope = Scope(
        level=plan.level,
        tier=Tier(plan.tier).name.lower(),
        mode=plan.mode,
        suites=plan.suites,
        ops=plan.ops,
        dtypes=plan.dtypes,
        options=dict(plan.options),
        shard=str(plan.shard),
    )
    return _report(
        scope,
        result.outcomes,
        apply(ledger, result.outcomes, _Known(plan)),
        result.about.determinism,
        suite_version=suite_version(),
        device=result.about.header,
        modes=result.about.modes,
        fingerprint=result.seen.fingerprint,
        contradictions=result.seen.contradictions,
        seconds=result.seconds,
    )


def merged(reports: Sequence[Report]) -> Report:
    """The report of a run whose shards were run apart.

    Raises:
        SettingsError: a shard is missing, there twice, or of another run.
    """
    first = reports[0]
    shards = [Shard.parse(report.scope.shard or "1/1") for report in reports]
    count = shards[0].count
    for report, shard in zip(reports, shards, strict=True):
        if shard.count != count:
            raise SettingsError(f"shard {shard} does not belong to shards of which there are {count}")
        for name, ours, theirs in _differences(first, report):
            raise SettingsError(f"shard {shard} is of another run: its {name} is {theirs!r}, not {ours!r}")
    numbers = sorted(shard.number for shard in shards)
    wrong = [n for n in range(1, count + 1) if numbers.count(n) != 1]
    if wrong:
        what = "is missing" if wrong[0] not in numbers else "is there more than once"
        raise SettingsError(f"shard {wrong[0]}/{count} {what}")
    ordered = [report for _, report in sorted(zip(shards, reports, strict=True), key=lambda pair: pair[0].number)]
    return _report(
        first.scope.model_copy(update={"shard": ""}),
        _woven([report.outcomes for report in ordered]),
        tuple({entry.id: entry for report in ordered for entry in report.ledger}.values()),
        str(first.modes.arithmetic.get("determinism", "D0")),
        suite_version=first.suite_version,
        device=first.device,
        modes=first.modes,
        fingerprint=first.fingerprint,
        contradictions=tuple(dict.fromkeys(text for report in ordered for text in report.contradictions)),
        seconds=sum(report.seconds for report in ordered),
        parts=tuple(report.digest for report in ordered),
    )


def _differences(first: Report, other: Report) -> Iterator[tuple[str, Any, Any]]:
    """What two shards of one run must have in common and do not."""
    pairs = [("suite version", first.suite_version, other.suite_version)]
    for what in ("device", "modes", "scope"):
        ours, theirs = getattr(first, what).model_dump(), getattr(other, what).model_dump()
        pairs += [(f"{what} {name}", ours[name], theirs[name]) for name in ours if name != "shard"]
    yield from ((name, ours, theirs) for name, ours, theirs in pairs if ours != theirs)


def _woven(parts: Sequence[Sequence[Outcome]]) -> tuple[Outcome, ...]:
    """The outcomes of all shards in the order of the items."""
    total = sum(map(len, parts))
    found = [parts[i % len(parts)][i // len(parts) : i // len(parts) + 1] for i in range(total)]
    if not all(found):
        raise SettingsError("the shards have not the numbers of items that shards of one run have")
    return tuple(outcome for row in found for outcome in row)


def _report(
    scope: Scope, outcomes: Sequence[Outcome], ledger: Sequence[LedgerEntry], determinism: str, **facts: Any
) -> Report:
    cells = _cells(scope)
    results: tuple[LevelResult, ...] = ()
    if scope.mode == "test" and not scope.narrowed and "ops" in scope.suites:
        excused = {entry.id: entry for entry in ledger if entry.standing == "expected"}
        declared = Declared(frozenset(facts["device"].dtypes), determinism)
        results = reached(outcomes, declared, cells, excused, top=scope.level or levels.levels()[-1].name)
    needed = sum(cells.values()) if not scope.shard else 0
    others = sum(suite_of(outcome.id) != "ops" for outcome in outcomes)
    return Report.of(
        scope=scope,
        outcomes=outcomes,
        expected=needed + others or None,
        ledger=ledger,
        levels=results,
        selftest=published(facts["suite_version"]),
        **facts,
    )


def _cells(scope: Scope) -> dict[tuple[str, str], int]:
    """How many items each op must have in each dtype."""
    if "ops" not in scope.suites:
        return {}
    return expected(wanted("ops", scope.level, Tier[scope.tier.upper()], scope.ops, scope.dtypes))


class _Known:
    """Whether there is an item of an id in any tier of the suites of a run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ids: frozenset[str] | None = None

    def __call__(self, id: str) -> bool:
        if self._ids is None:
            everything = Selection(int(Tier.EXHAUSTIVE), options=self._plan.options)
            suites = load_suites(self._plan.suites, everything, self._plan.numerics)
            self._ids = frozenset(item.id for suite in suites for item in suite.items())
        return id in self._ids or suite_of(id) not in self._plan.suites
