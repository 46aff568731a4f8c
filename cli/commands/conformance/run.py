"""`xinheng conformance run`: run suites on a device, write the report, and tell which level is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...options import Assignments, Json, settings
from .planning import Dtypes, Level, Ops, Options, Suites, TierName, planned

Folder = Annotated[Path | None, typer.Option(help="Folder to write the report to.")]
Key = Annotated[Path | None, typer.Option(help="PEM file of an Ed25519 private key to sign the report with.")]


def run(
    device: Annotated[str, typer.Option(help="name[:ordinals or word][@runtime]; see 'xinheng devices'.")],
    level: Level = "",
    tier: TierName = "default",
    suite: Suites = "",
    op: Ops = "",
    dtype: Dtypes = "",
    option: Options = None,
    mode: Annotated[
        str, typer.Option(help="test; support: only tell what could be run; perf: also take times.")
    ] = "test",
    ledger: Annotated[Path | None, typer.Option(help="TOML file of expected failures.")] = None,
    shard: Annotated[str, typer.Option(metavar="N/COUNT", help="Only every COUNT-th item; see 'merge'.")] = "",
    report: Folder = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run whose journal is in the --report folder.")
    ] = False,
    sign: Key = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; one for a device with memory of its own unless told.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="Seconds after which an item counts as hung.")] = None,
    set: Assignments = None,
    json: Json = False,
) -> int:
    """Run conformance suites on a device.

    The exit status is 0 if the level that was asked for is reached (without --level: if nothing fails), 1 if not.
    """
    from xinheng.conformance.report import write_report
    from xinheng.conformance.running.conclusion import conclude
    from xinheng.conformance.running.ledger import read_ledger
    from xinheng.conformance.running.runner import Means
    from xinheng.conformance.running.runner import run as run_plan
    from xinheng.core.errors import SettingsError

    from .showing import show, watched

    if resume and report is None:
        raise SettingsError("--resume needs the --report folder of the run to go on with")
    runtime, _ = settings(set, device)
    wishes = {"level": level, "tier": tier, "suite": suite, "op": op, "dtype": dtype, "shard": shard, "mode": mode}
    plan = planned(runtime, option=option, **wishes)
    entries = read_ledger(ledger) if ledger is not None else ()
    means = Means(workers or (1 if mode == "perf" else None), runtime.threads, timeout, report, resume)
    with watched(quiet=json) as watcher:
        result = run_plan(plan, means, watcher)
    made = conclude(plan, result, entries)
    paths = write_report(made, report, sign) if report is not None else {}
    passed = mode == "support" or made.passed
    show(made, passed, paths, json)
    return 0 if passed else 1
