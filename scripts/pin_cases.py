"""Pin the number of cases: writes conformance/data/counts.toml, so that a run with fewer fails. `--check` compares."""

from __future__ import annotations

import sys
from pathlib import Path

from xinheng.conformance.running.census import counted, text

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Write the file, or say with status 1 that it is not up to date."""
    path, wanted = ROOT / "conformance/data/counts.toml", text(counted())
    if "--check" not in sys.argv[1:]:
        path.write_text(wanted, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != wanted:
        print(f"{path.relative_to(ROOT)} is out of date; run scripts/pin_cases.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
