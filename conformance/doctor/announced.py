"""What a vendor announces to fail: entries have to be whole, about items that exist, and not out of date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from xinheng.core.errors import FormatError, GraphError

from ..case import find
from ..running.census import suite_of
from ..running.ledger import read_ledger
from .symptom import Findings

SOON = timedelta(days=14)


def examine_ledger(path: Path | None, findings: Findings) -> None:
    """Read a ledger and look at each entry."""
    if path is None:
        remedy = "put an empty one into the package; what is expected to fail has to stand there"
        findings.note("ledger.none", "the package has no expectations.toml", remedy)
        return
    try:
        entries = read_ledger(path)
    except (FormatError, OSError) as error:
        findings.error("ledger.format", str(error), "an entry has id, owner, class, issue and expires")
        return
    findings.figures["ledger_entries"] = len(entries)
    today = datetime.now(UTC).date()
    for entry in entries:
        if not _exists(entry.id):
            findings.error("ledger.unknown", f"{path}: no case is called {entry.id!r}", "remove or correct the entry")
        elif entry.expires < today:
            text = f"{path}: the entry of {entry.id} expired on {entry.expires}; it belongs to {entry.owner}"
            findings.error("ledger.expired", text, f"fix it, see {entry.issue}, or give it another day")
        elif entry.expires - today < SOON:
            text = f"{path}: the entry of {entry.id} expires on {entry.expires}; it belongs to {entry.owner}"
            findings.warning("ledger.expiring", text, f"see {entry.issue}")


def _exists(id: str) -> bool:
    if suite_of(id) != "ops" and id.count("/") != 4:
        return True
    try:
        find(id)
    except GraphError:
        return False
    return True
