"""Run the command line: `python -m xinheng`."""

from __future__ import annotations

from xinheng.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
