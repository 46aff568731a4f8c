"""The ledger: each failure that is expected has an exact id, an owner and an end, and nothing else is excused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest

from xinheng.conformance.report import LedgerEntry
from xinheng.conformance.running.ledger import apply, read_ledger
from xinheng.core.errors import FormatError
from xinheng.core.suite import DECLARED, Outcome, Verdict

TODAY = date(2030, 5, 17)
ENTRY = """
[[expectation]]
id = "add/f32/3x5/normal/0"
owner = "kernels@example.com"
class = "bug"
issue = "https://example.com/17"
expires = 2030-05-17
"""


def entry(kind: str = "bug", id: str = "add/1", expires: date = TODAY) -> LedgerEntry:
    return LedgerEntry.model_validate({"id": id, "owner": "o", "kind": kind, "issue": "i", "expires": expires})


def outcome(verdict: Verdict, id: str = "add/1", defect: str = "") -> Outcome:
    return Outcome(id=id, op="add", dtype="float32", verdict=verdict, defect=defect)


def standing(
    entries: Sequence[LedgerEntry], *outcomes: Outcome, known: Sequence[str] = ("add/1", "add/2")
) -> list[str]:
    return [e.standing for e in apply(entries, outcomes, known.__contains__, TODAY)]


@pytest.mark.parametrize(
    ("kind", "verdict", "expected"),
    [
        ("bug", Verdict.FAIL, "expected"),
        ("bug", Verdict.CRASH, "expected"),
        ("bug", Verdict.HANG, "expected"),
        ("bug", Verdict.OUT_OF_MEMORY, "expected"),
        ("bug", Verdict.PASS, "unexpected pass"),
        ("bug", Verdict.UNSUPPORTED, "contradicted"),
        ("bug", Verdict.BAD_CASE, "contradicted"),
        ("unsupported", Verdict.UNSUPPORTED, "expected"),
        ("unsupported", Verdict.PASS, "unexpected pass"),
        ("unsupported", Verdict.FAIL, "contradicted"),
        ("unsupported", Verdict.CRASH, "contradicted"),
        ("flaky", Verdict.PASS, "expected"),
        ("flaky", Verdict.FAIL, "expected"),
        ("flaky", Verdict.UNSUPPORTED, "contradicted"),
    ],
)
def test_an_entry_holds_where_the_item_does_what_it_says(kind: str, verdict: Verdict, expected: str) -> None:
    assert standing([entry(kind)], outcome(verdict)) == [expected]


def test_what_a_device_lacks_by_declaration_needs_no_entry() -> None:
    assert standing([entry("unsupported")], outcome(Verdict.UNSUPPORTED, defect=DECLARED)) == ["unexpected pass"]


def test_an_entry_expires_after_its_last_day() -> None:
    failed = outcome(Verdict.FAIL)
    assert standing([entry()], failed) == ["expected"]
    assert standing([entry(expires=date(2030, 5, 16))], failed) == ["expired"]


def test_an_entry_of_no_item_is_stale_and_one_that_was_not_run_says_nothing() -> None:
    assert standing([entry(id="add/3")], outcome(Verdict.PASS)) == ["unknown"]
    assert standing([entry(id="add/2")], outcome(Verdict.PASS)) == []


def test_reading(tmp_path: Path) -> None:
    path = tmp_path / "ledger.toml"
    path.write_text(ENTRY + ENTRY.replace("/0", "/1").replace("bug", "flaky"))
    first, second = read_ledger(path)
    assert (first.id, first.kind, first.expires) == ("add/f32/3x5/normal/0", "bug", TODAY)
    assert (second.id, second.kind) == ("add/f32/3x5/normal/1", "flaky")
    path.write_text("")
    assert read_ledger(path) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[expectation", "is no valid TOML"),
        ("[[expectations]]", "consists of .*expectation.* entries only"),
        ("expectation = 3", "consists of .*expectation.* entries only"),
        (ENTRY.replace('owner = "kernels@example.com"', ""), "entry 1 has no field 'owner'"),
        (ENTRY.replace('"kernels@example.com"', '""'), "needs an owner"),
        (ENTRY.replace('"https://example.com/17"', '""'), "needs an owner and an issue"),
        (ENTRY.replace("owner", "Owner"), "entry 1 knows no field 'Owner'"),
        (ENTRY.replace('"bug"', '"wontfix"'), "field 'class'"),
        (ENTRY.replace("2030-05-17", '"soon"'), "field 'expires'"),
        (ENTRY + ENTRY, "two entries are about 'add/f32/3x5/normal/0'"),
    ],
)
def test_what_is_no_ledger_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "ledger.toml"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_ledger(path)
