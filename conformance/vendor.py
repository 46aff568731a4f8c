"""What a vendor ships in the package of a plugin besides its code."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from xinheng.core.plugins import GROUP

LEDGER = "expectations.toml"


def own_ledger(backend: str) -> Path | None:
    """The file `expectations.toml` in the package that brings a backend, which is not imported; None without one."""
    for entry in entry_points(group=GROUP, name=backend):
        found = find_spec(entry.module.partition(".")[0])
        parts = entry.module.split(".")[1:]
        for folder in (found.submodule_search_locations or ()) if found is not None else ():
            path = Path(folder, *parts, LEDGER)
            if path.is_file():
                return path
    return None
