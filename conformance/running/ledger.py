"""The ledger: what a vendor expects to fail, each item by its exact id, with an owner and a day on which it expires.

A TOML file of entries such as

    [[expectation]]
    id = "softmax/f16/T7xD4096/outliers/3"
    owner = "kernels@example.com"
    class = "bug"            # or "unsupported", or "flaky"
    issue = "https://example.com/issues/17"
    expires = 2027-01-31
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from xinheng.core.errors import FormatError
from xinheng.core.suite import Outcome, Verdict

from ..report.model import LedgerEntry, Standing

_KEYS = {"id", "owner", "class", "issue", "expires"}
_FAILED = frozenset({Verdict.FAIL, Verdict.CRASH, Verdict.HANG, Verdict.OUT_OF_MEMORY})


def read_ledger(path: Path) -> tuple[LedgerEntry, ...]:
    """The entries of a file, in its order.

    Raises:
        FormatError: it is no ledger; the message names file, entry and field.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is no valid TOML: {error}") from None
    listed = table.get("expectation", [])
    if set(table) - {"expectation"} or not isinstance(listed, list):
        raise FormatError(f"{path}: a ledger consists of [[expectation]] entries only")
    entries = tuple(_entry(path, number, fields) for number, fields in enumerate(listed, 1))
    ids = [entry.id for entry in entries]
    twice = next((id for id in ids if ids.count(id) > 1), None)
    if twice is not None:
        raise FormatError(f"{path}: two entries are about {twice!r}; keep one of them")
    return entries


def _entry(path: Path, number: int, fields: Mapping[str, Any]) -> LedgerEntry:
    wrong = sorted(set(fields) ^ _KEYS)
    if wrong:
        what = "has no" if wrong[0] in _KEYS else "knows no"
        raise FormatError(f"{path}: entry {number} {what} field {wrong[0]!r}; it has {', '.join(sorted(_KEYS))}")
    named = {"kind" if name == "class" else name: value for name, value in fields.items()}
    try:
        entry = LedgerEntry.model_validate(named)
    except ValidationError as error:
        first = error.errors()[0]
        field = "class" if first["loc"] == ("kind",) else ".".join(map(str, first["loc"]))
        raise FormatError(f"{path}: entry {number}, field {field!r}: {first['msg']}") from None
    if not (entry.owner and entry.issue):
        raise FormatError(f"{path}: entry {number} ({entry.id}) needs an owner and an issue; nobody's failure stays")
    return entry


def apply(
    entries: Iterable[LedgerEntry],
    outcomes: Iterable[Outcome],
    known: Callable[[str], bool],
    today: date | None = None,
) -> tuple[LedgerEntry, ...]:
    """The entries that concern a run, each with what became of it.

    Left out are those of items that exist and were not part of this run.

    Args:
        known: whether there is an item of this id in any tier.
        today: for tests; by default it is asked for, in UTC.
    """
    found = {outcome.id: outcome for outcome in outcomes}
    now = today or datetime.now(UTC).date()
    applied = []
    for entry in entries:
        outcome = found.get(entry.id)
        if outcome is None and known(entry.id):
            continue
        applied.append(entry.model_copy(update={"standing": _standing(entry, outcome, now)}))
    return tuple(applied)


def _standing(entry: LedgerEntry, outcome: Outcome | None, today: date) -> Standing:
    if outcome is None:
        return "unknown"
    if entry.expires < today:
        return "expired"
    if entry.kind == "flaky":
        return "expected" if outcome.verdict is Verdict.PASS or outcome.verdict in _FAILED else "contradicted"
    if outcome.verdict is Verdict.PASS or outcome.absent:
        return "unexpected pass"
    announced = {Verdict.UNSUPPORTED} if entry.kind == "unsupported" else _FAILED
    return "expected" if outcome.verdict in announced else "contradicted"
