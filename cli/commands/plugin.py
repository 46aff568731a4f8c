"""`xinheng plugin`: check a backend plugin, or begin one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import Json

if TYPE_CHECKING:
    from xinheng.conformance.doctor import Checkup

app = typer.Typer(name="plugin", no_args_is_help=True, help="Check a backend plugin, or begin one.")
Name = Annotated[str, typer.Argument(help="What users call its devices by: the first word of acme:0.")]


@app.command("check")
def check(
    name: Name,
    device: Annotated[
        str | None, typer.Option(help="Open this one; by default the first that its probe finds.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Its file of expectations; by default the one in its package.")
    ] = None,
    json: Json = False,
) -> int:
    """Look at an installed plugin for what breaks the contract; the exit status is 1 if anything does."""
    from xinheng.conformance.doctor import check as examine

    from ..output import print_json

    made = examine(name, device, ledger)
    if json:
        print_json({**made.model_dump(mode="json"), "errors": made.errors})
    else:
        _print(made)
    return 1 if made.errors else 0


@app.command("new")
def new(
    name: Name,
    dir: Annotated[Path | None, typer.Option(help="The folder to make; by default xinheng-NAME.")] = None,
    license: Annotated[
        str, typer.Option(help="Apache-2.0, MIT, BSD-3-Clause, or any other SPDX expression.")
    ] = "Apache-2.0",
    vendor: Annotated[str | None, typer.Option(help="Who makes the device, as people write it.")] = None,
    torch: Annotated[str | None, typer.Option(help="The device type by which torch addresses it, if it does.")] = None,
) -> None:
    """Write a new plugin that works at once: a device, one kernel, a ledger, and its conformance test."""
    from xinheng.conformance.scaffold import scaffold

    folder = dir or Path(f"xinheng-{name}")
    for path in scaffold(name, folder, license=license, vendor=vendor, torch=torch):
        print(path)
    device = f" --device {name}:emulated" if torch else ""
    print(f"\npip install -e {folder} && xinheng plugin check {name}{device} && python -m pytest {folder}")


def _print(made: Checkup) -> None:
    from ..output import print_table

    who = f"{made.plugin} of {made.distribution} {made.version}" if made.distribution else made.plugin
    print(f"{who}{f', looked at {made.device}' if made.device else ''}")
    rows = [(s.severity.value, s.code, s.text, s.remedy) for s in made.symptoms]
    if rows:
        print()
        print_table(("", "code", "what", "what to do"), rows)
    if made.figures:
        print()
        print(
            ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in made.figures.items() if name != "devices")
        )
    count = made.errors
    print(f"\n{count} error{'' if count == 1 else 's'}" if count else "\nnothing breaks the contract")
