"""What is known about the suite itself: the figures of its last self-test, which are shipped with it."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from xinheng.core.errors import SettingsError

from ..report.model import Selftest

FILE = "selftest.json"


def stored() -> dict[str, Any]:
    """The last self-test as it was written; empty if there is none."""
    file = resources.files("xinheng.conformance.data").joinpath(FILE)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found


def published(suite: str) -> Selftest | None:
    """The figures of a version of the suite; None if it was never tested."""
    found = stored()
    return Selftest(**found["figures"]) if found.get("suite") == suite else None


def keep(found: dict[str, Any]) -> None:
    """Write a self-test to where `stored` finds it, in the sources of the program.

    Raises:
        SettingsError: not everything was tested, or the sources cannot be written.
    """
    if not found["complete"]:
        raise SettingsError("figures of a part of the suite are not kept; test all ops, with 1,000 seeds or more")
    path = Path(str(resources.files("xinheng.conformance.data").joinpath(FILE)))
    try:
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"the figures cannot be written to {path}: {error.strerror}") from error
