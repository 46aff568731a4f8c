"""From outcomes to a report: shards join to what one run would have found, and foreign ones are refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from xinheng.conformance.report import Report
from xinheng.conformance.running.conclusion import conclude, merged
from xinheng.conformance.running.plan import Plan, Shard
from xinheng.conformance.running.runner import Means, Result, run
from xinheng.core.errors import SettingsError
from xinheng.core.suite import Verdict

PLAN = Plan("sim:exact", ("ops",), ops=("floor", "logical_not"), dtypes=("float32", "bool"))


@pytest.fixture(scope="module")
def whole() -> Result:
    return run(PLAN, Means(workers=1))


def shard(whole: Result, text: str, plan: Plan = PLAN) -> Report:
    """The report that a shard would have, without running it."""
    part = Shard.parse(text)
    outcomes = tuple(part.of(whole.outcomes))
    return conclude(replace(plan, shard=part), replace(whole, outcomes=outcomes))


def test_shards_join_to_the_report_of_the_whole(whole: Result) -> None:
    parts = [shard(whole, text) for text in ("3/3", "1/3", "2/3")]
    joint, single = merged(parts), conclude(PLAN, whole)
    assert joint.outcomes == single.outcomes
    assert joint.figures == single.figures
    assert joint.scope == single.scope
    assert joint.levels == single.levels
    assert joint.parts == tuple(parts[i].digest for i in (1, 2, 0))


def test_shards_are_run_apart(whole: Result) -> None:
    made = [run(replace(PLAN, shard=Shard(n, 2)), Means(workers=1)) for n in (1, 2)]
    ids = [outcome.id for outcome in whole.outcomes]
    assert [outcome.id for outcome in made[0].outcomes] == ids[::2]
    assert [outcome.id for outcome in made[1].outcomes] == ids[1::2]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("1/3", "3/3"), "shard 2/3 is missing"),
        (("1/2", "2/2", "2/2"), "shard 2/2 is there more than once"),
        (("1/2", "2/3"), "shard 2/3 does not belong"),
    ],
)
def test_missing_and_foreign_shards_are_refused(whole: Result, texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        merged([shard(whole, text) for text in texts])


def test_shards_of_other_runs_are_refused(whole: Result) -> None:
    first, second = shard(whole, "1/2"), shard(whole, "2/2")
    fast = second.model_copy(update={"modes": second.modes.model_copy(update={"numerics": "fast"})})
    with pytest.raises(SettingsError, match="its modes numerics is 'fast', not 'strict'"):
        merged([first, fast])
    with pytest.raises(SettingsError, match="scope tier is 'full', not 'default'"):
        merged([first, shard(whole, "2/2", replace(PLAN, tier=1))])
    short = second.model_copy(update={"outcomes": second.outcomes[:-2]})
    with pytest.raises(SettingsError, match="not the numbers of items"):
        merged([first, short])


def test_fewer_items_than_are_pinned_fail_a_run(whole: Result) -> None:
    complete = conclude(PLAN, whole)
    assert complete.passed and complete.figures.total == complete.figures.expected > 20
    lacking = conclude(PLAN, replace(whole, outcomes=whole.outcomes[:-1]))
    assert not lacking.passed
    assert any("items were run where there should be" in problem for problem in lacking.problems)


def test_a_shard_is_not_asked_for_all_items(whole: Result) -> None:
    part = shard(whole, "2/3")
    assert part.passed and part.figures.expected == part.figures.total and not part.levels


def test_levels_are_decided_by_whole_runs_only(whole: Result) -> None:
    assert conclude(PLAN, whole).levels == ()
    level = conclude(Plan("sim:exact", ("ops", "supports"), "L1"), whole)
    assert [one.level for one in level.levels] == ["L0", "L1"]
    assert not level.levels[0].reached and not level.passed


def test_an_entry_for_an_unknown_item_fails_the_run(whole: Result) -> None:
    from xinheng.conformance.report import LedgerEntry

    fields = {"owner": "o", "kind": "bug", "issue": "i", "expires": "2999-01-01"}
    stale = LedgerEntry.model_validate({**fields, "id": "floor/f32/none/normal/0"})
    elsewhere = LedgerEntry.model_validate({**fields, "id": whole.outcomes[0].id.replace("floor", "round")})
    report = conclude(PLAN, whole, [stale, elsewhere])
    assert [entry.standing for entry in report.ledger] == ["unknown"]
    assert not report.passed


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield
    sys.modules.pop("troublesome", None)


@pytest.mark.usefixtures("importable")
def test_a_failing_item_of_another_suite_fails_the_run() -> None:
    plan = Plan("sim:exact", ("troublesome:TroublesomeSuite",), options={"items": "3", "ends": "1=exit"})
    report = conclude(plan, run(plan, Means(workers=1)))
    assert [outcome.verdict for outcome in report.failures] == [Verdict.CRASH]
    assert not report.passed
