"""`xinheng conformance merge`: one report from those of all shards of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...options import Json
from .run import Key


def merge(
    shards: Annotated[list[Path], typer.Argument(help="The reports of all shards, or the folders they are in.")],
    report: Annotated[Path, typer.Option(help="Folder to write the joint report to.")],
    sign: Key = None,
    json: Json = False,
) -> int:
    """Join the reports of the shards of a run; the exit status is that of the whole run."""
    from xinheng.conformance.report import read_report, write_report
    from xinheng.conformance.running.conclusion import merged

    from .showing import show

    made = merged([read_report(path) for path in shards])
    paths = write_report(made, report, sign)
    passed = made.passed
    show(made, passed, paths, json)
    return 0 if passed else 1
