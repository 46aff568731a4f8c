"""Reports: figures, what makes a run fail, and JSON that reads back and shows every change."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from xinheng.conformance.report import (
    Figures,
    LedgerEntry,
    Report,
    Scope,
    Spread,
    read_report,
    report_markdown,
    write_report,
)
from xinheng.core.certificate import Certificate
from xinheng.core.errors import CertificateError, FormatError
from xinheng.core.signature import digest, read_document, verify

from .reports import DEVICE, LEVELS, OUTCOMES, outcome, report


# ------------------------------------------------------------------------------------------------------------- figures
def test_the_denominator_holds_what_the_ledger_excuses_but_not_what_is_absent() -> None:
    figures = report().figures
    assert figures == Figures(
        total=6,
        expected=6,
        verdicts={"pass": 4, "fail": 1, "unsupported": 1},
        absent=1,
        indebted=1,
        pass_rate=4 / 5,
        debt=1 / 5,
    )


def test_a_run_of_nothing_has_figures_and_passes_nothing() -> None:
    empty = report(outcomes=(), ledger=(), scope=Scope(suites=("ops",)), expected=3)
    assert (empty.figures.total, empty.figures.pass_rate) == (0, 0.0)
    assert empty.problems == ("0 items were run where there should be 3",)


def test_spreads_are_in_units_of_the_bound_and_end_at_the_worst() -> None:
    errors = [i / 100 for i in range(1, 101)]
    (spread,) = Spread.each([outcome(number=i, worst=error) for i, error in enumerate(reversed(errors))])
    assert (spread.p50, spread.p90, spread.p99, spread.worst) == (0.51, 0.91, 1.0, 1.0)
    assert Spread.each([outcome(worst=None)]) == ()


# -------------------------------------------------------------------------------------------------- what makes it fail
def test_known_failures_and_absent_dtypes_do_not_fail_the_run() -> None:
    assert report().problems == () and report().passed


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"ledger": ()}, "erf/f16/8/normal/0: fail, numbers"),
        ({"outcomes": [outcome(verdict="unsupported")]}, "add/f32/8/normal/0: unsupported"),
        ({"outcomes": [outcome(verdict="bad case", defect="useless-bound")]}, "useless-bound"),
        ({"expected": 7}, "6 items were run where there should be 7"),
        ({"levels": LEVELS[:1]}, "level L1 was asked for and L0 is reached"),
        ({"levels": ()}, "level L1 was asked for and none is reached"),
        ({"contradictions": ["declares no flush"]}, "fingerprint: the device declares no flush"),
    ],
    ids=["unexcused", "unsupported", "bad-case", "fewer", "level", "no-level", "fingerprint"],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], problem: str) -> None:
    made = report(**fields)
    assert not made.passed
    assert any(problem in told for told in made.problems)


def test_a_part_of_a_suite_is_not_failed_for_the_level_it_cannot_decide() -> None:
    whole = Scope(level="L1", suites=("ops",))
    for part in ({"shard": "1/2"}, {"ops": ("add",)}, {"dtypes": ("float32",)}):
        assert report(levels=(), scope=whole.model_copy(update=part)).passed


def test_a_broken_promise_beyond_what_the_level_needs_is_told_but_fails_nothing() -> None:
    levels = [LEVELS[0], LEVELS[1].model_copy(update={"determinism": "D1"})]
    broken = outcome(verdict="fail", defect="batch")
    made = report(broken, levels=levels)
    assert made.passed and made.failures == made.tolerated == (broken,)
    assert "does not need: 1" in report_markdown(made) and "does not need" not in report_markdown(report())
    assert not report(outcome(verdict="fail", defect="repeat"), levels=levels).passed
    assert not report(outcome(verdict="crash", defect="batch"), levels=levels).passed
    for scope in (Scope(suites=("ops",)), Scope(level="L2", suites=("ops",))):
        assert not report(broken, levels=levels, scope=scope).passed


@pytest.mark.parametrize("standing", ["unexpected pass", "contradicted", "expired", "unknown"])
def test_an_entry_of_the_ledger_that_does_not_hold_excuses_nothing(standing: Any) -> None:
    entry = LedgerEntry(id="erf/f16/8/normal/0", owner="w", kind="bug", expires=date(2026, 1, 1), standing=standing)
    made = report(ledger=[entry])
    assert f"ledger: {entry.id}: {standing}" in made.problems
    assert made.figures.indebted == 0 and made.failures == (OUTCOMES[3],)


def test_the_level_is_the_highest_with_all_below_it() -> None:
    assert (report().level, report().badge) == ("L1", "L1")
    assert report().next_level == LEVELS[2]
    gap = [LEVELS[0], LEVELS[1].model_copy(update={"reached": False}), LEVELS[2].model_copy(update={"reached": True})]
    assert report(levels=gap).level == "L0"
    assert report(levels=gap[:1]).next_level is None
    emulated = report(device=DEVICE.model_copy(update={"emulated": True}))
    assert emulated.badge == "L1 (emulated)"
    assert report(levels=()).badge == "no level"


# ---------------------------------------------------------------------------------------------------------------- files
def test_a_report_reads_back_as_it_was(tmp_path: Path) -> None:
    made = report(*OUTCOMES, outcome("exp", worst=float("inf"), verdict="fail", defect="specials", number=9))
    paths = write_report(made, tmp_path / "deep" / "out")
    assert {form: path.name for form, path in paths.items()} == {
        "json": "report.json",
        "html": "report.html",
        "markdown": "report.md",
        "junit": "junit.xml",
        "certificate": "certificate.json",
    }
    assert read_report(paths["json"]) == read_report(tmp_path / "deep" / "out") == made
    assert verify(read_document(paths["json"])) is None


def test_the_same_run_has_the_same_digest_and_another_has_another() -> None:
    assert report().digest == report().digest == digest(report().document())
    assert report(seconds=13.0).digest != report().digest


def numbers(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all numbers in plain data."""
    if isinstance(data, dict | list):
        pairs = data.items() if isinstance(data, dict) else enumerate(data)
        return [place for key, value in pairs for place in numbers(value, (*path, key))]
    return [path] if isinstance(data, int | float) and not isinstance(data, bool) else []


def test_any_number_that_is_edited_shows() -> None:
    from xinheng.core.errors import SignatureError

    document = report().document()
    places = numbers(document)
    assert len(places) > 50
    for place in places:
        edited = json.loads(json.dumps(document))
        inner = edited
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] += 1
        with pytest.raises(SignatureError, match="digest"):
            verify(edited)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 7}, "report format 7, and this xinheng reads format 1; install a newer xinheng"),
        ({"version": 0}, "report format 0, and this xinheng reads format 1; run the suite again"),
        ({"kind": "other"}, "field 'kind' is 'other'"),
        ({"colour": "red"}, "field 'colour' of the report"),
        ({"figures": {}}, "field 'figures.total' of the report"),
    ],
    ids=["newer", "older", "kind", "unknown", "missing"],
)
def test_a_file_that_is_no_report_of_this_format_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps({**report().document(), **change}), encoding="utf-8")
    with pytest.raises(FormatError, match=message) as caught:
        read_report(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '"text"'])
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=r"report\.json: "):
        read_report(tmp_path)


def test_reports_are_data_that_nobody_changes() -> None:
    made = report()
    with pytest.raises(ValidationError):
        made.seconds = 1.0
    with pytest.raises(ValidationError):
        Report(**{**made.model_dump(), "colour": "red"})


# --------------------------------------------------------------------------------------------------------- certificates
def test_a_certificate_says_what_the_report_says() -> None:
    made = report()
    certificate = made.certificate()
    assert isinstance(certificate, Certificate)
    assert (certificate.level, certificate.suite_version, certificate.report) == ("L1", "1.0", made.digest)
    assert (certificate.items, certificate.passed, certificate.debt) == (5, 4, 1)
    assert (certificate.kill_rate, certificate.false_alarms) == (183 / 184, 0)
    assert certificate.device.model_dump() == {
        name: getattr(DEVICE, name) for name in ("spec", "name", "driver", "emulated", "plugin", "plugin_version")
    }


def test_without_a_level_there_is_no_certificate(tmp_path: Path) -> None:
    none = report(levels=[level.model_copy(update={"reached": False}) for level in LEVELS])
    with pytest.raises(CertificateError, match="reached no level"):
        none.certificate()
    write_report(report(), tmp_path)
    assert "certificate" not in write_report(none, tmp_path)
    assert not (tmp_path / "certificate.json").exists()
