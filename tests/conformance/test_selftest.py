"""The suite examines itself: a slice of its mutants and of correct kernels, the figures, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from xinheng.cli.main import app
from xinheng.conformance.mutants import MUTANTS
from xinheng.conformance.mutants.hunt import Fate, Hunted
from xinheng.conformance.running.conclusion import suite_version
from xinheng.conformance.selftests import figures, strength
from xinheng.conformance.selftests import selftest as module
from xinheng.conformance.selftests.alarms import Heard
from xinheng.conformance.selftests.selftest import Alarms, Kills, SelfTest, selftest
from xinheng.conformance.selftests.standard import standards
from xinheng.core.errors import GraphError, SettingsError
from xinheng.core.ops import OPSET

SLICE = tuple(OPSET)[3::9]
"""The ops that every run of the tests examines; the others are for `xinheng conformance selftest`."""


@pytest.fixture(scope="module")
def examined() -> SelfTest:
    return selftest(seeds=4, ops=SLICE, stride=4, processes=1)


def test_a_slice_of_the_suite(examined: SelfTest) -> None:
    assert examined.ok, (examined.seeded.survivors, examined.automatic.survivors, examined.alarms)
    assert examined.seeded.rate == 1
    assert examined.automatic.total > 50
    assert not examined.complete


def test_the_slice_is_not_empty(examined: SelfTest) -> None:
    assert examined.cases == sum(len(standards(op)) for op in SLICE)
    assert examined.figures.correct_runs > 500
    assert {a.dtype for a in examined.alarms} >= {"float32", "float16", "bfloat16"}
    assert sum(a.seeds for a in examined.alarms) >= 4 * 9


def test_processes_give_the_same(examined: SelfTest) -> None:
    told: list[tuple[int, int]] = []
    ops = ("softmax", "exp")
    alone, dealt = (selftest(3, ops, 3, n, lambda i, of: told.append((i, of))) for n in (1, 2))
    same: dict[str, Any] = {"seconds": 0, "alarms": ()}
    assert alone.model_copy(update=same) == dealt.model_copy(update=same)
    assert {(a.op_class, a.dtype, a.runs) for a in alone.alarms} == {
        (a.op_class, a.dtype, a.runs) for a in dealt.alarms
    }
    assert told[-1][0] == told[-1][1] > 2


def test_an_unknown_op() -> None:
    with pytest.raises(GraphError, match="rms_norms"):
        selftest(0, ["rms_norms"])


# ------------------------------------------------------------------------------------------------------------- figures
def kills(*fates: Fate) -> Kills:
    return module._kills(Hunted(f"op: place {i}: edit", fate) for i, fate in enumerate(fates))


def made(**changes: Any) -> SelfTest:
    whole = {
        "suite": "1",
        "complete": True,
        "cases": 10,
        "seeds": 1000,
        "seeded": kills(Fate.KILLED),
        "automatic": kills(*[Fate.KILLED] * 100),
        "alarms": (),
        "strengths": (),
        "seconds": 1.0,
    }
    return SelfTest(**{**whole, **changes})


def test_what_is_no_bug_does_not_count() -> None:
    k = kills(Fate.KILLED, Fate.KILLED, Fate.SURVIVED, Fate.EQUIVALENT, Fate.IDLE, Fate.UNFIT)
    assert (k.total, k.killed, k.equivalent, k.idle, k.unfit) == (3, 2, 1, 1, 1)
    assert k.rate == pytest.approx(2 / 3)
    assert k.survivors == ("op: place 2: edit",)
    assert kills().rate == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"seeded": kills(Fate.KILLED, Fate.SURVIVED)},
        {"automatic": kills(*[Fate.KILLED] * 98, *[Fate.SURVIVED] * 2)},
        {"automatic": Kills(total=1, killed=1, stale=("op: gone: edit",))},
        {
            "alarms": (
                Alarms(op_class="exact", dtype="float32", seeds=1, runs=9, rejected=("add/f32/1/normal/0: blocked",)),
            )
        },
    ],
    ids=["seeded", "automatic", "stale", "alarm"],
)
def test_what_makes_the_suite_fail(changes: dict[str, Any]) -> None:
    assert made().ok
    assert made(automatic=kills(*[Fate.KILLED] * 199, Fate.SURVIVED)).ok
    assert not made(**changes).ok


def test_figures_of_reports() -> None:
    alarms = tuple(Alarms(op_class="exact", dtype=d, seeds=3, runs=7, rejected=()) for d in ("float32", "float16"))
    got = made(alarms=alarms).figures
    assert (got.seeded, got.seeded_killed, got.automatic, got.correct_runs, got.false_alarms) == (1, 1, 100, 14, 0)


def test_runs_are_added_up() -> None:
    assert Heard(1, 5, ("a",)) + Heard(0, 3, ("b",)) == Heard(1, 8, ("a", "b"))


def test_strengths() -> None:
    least = strength.least("rms_norm", standards("rms_norm"))
    for dtype in ("float32", "float16", "bfloat16"):
        everywhere, one = least[dtype, "everywhere"], least[dtype, "one element"]
        assert everywhere is not None and one is not None and 0 < everywhere <= one <= 64
        share = least[dtype, "last term"]
        assert share is not None and share <= 1
    assert ("float32", "last term") not in strength.least("exp", standards("exp"))


def test_the_worst_op_of_a_class_stands_for_it() -> None:
    found = [
        module._Found("exp", least={("float32", "everywhere"): 8.0}),
        module._Found("log", least={("float32", "everywhere"): None}),
        module._Found("sin", least={("float32", "everywhere"): 99.0}),
    ]
    (s,) = module._strengths(found)
    assert (s.op, s.least, s.op_class) == ("log", None, "transcendental")


# ------------------------------------------------------------------------------------------------------ kept figures
def test_the_figures_that_are_shipped_are_those_of_this_suite() -> None:
    known = SelfTest.model_validate({k: v for k, v in figures.stored().items() if k != "figures"})
    assert known.suite == suite_version()
    assert known.complete and known.ok
    assert known.seeded.total == len(MUTANTS)
    assert known.seeds >= 1000
    assert figures.published(known.suite) == known.figures
    assert figures.published("another version") is None


def test_a_part_is_not_kept() -> None:
    with pytest.raises(SettingsError, match="not kept"):
        figures.keep(made(complete=False).model_dump(mode="json"))


def test_the_whole_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xinheng.conformance.selftests.figures.resources.files", lambda _: tmp_path)
    monkeypatch.setattr(figures, "FILE", "kept.json")
    figures.keep(made().model_dump(mode="json"))
    assert figures.published("1") == made().figures


def test_command() -> None:
    command = ["conformance", "selftest", "--op", "exp", "--seeds", "2", "--workers", "1"]
    got = CliRunner().invoke(app, [*command, "--json"])
    assert got.exit_code == 0, got.output
    data = json.loads(got.stdout)
    assert data["seeded"]["total"] == data["seeded"]["killed"] > 2
    assert data["figures"]["false_alarms"] == 0
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0
    assert "100.00%" in shown.stdout and "everywhere" in shown.stdout
