"""`xinheng conformance compare`: what changed from one report to another; the exit status says whether it got worse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...options import Json

if TYPE_CHECKING:
    from xinheng.conformance.report import Comparison

SHOWN = 40
"""Changes that are printed; --json and --html have all."""


def compare(
    before: Annotated[Path, typer.Argument(help="A report, or the folder it is in.")],
    after: Annotated[Path, typer.Argument(help="The later one, or that of the other device.")],
    html: Annotated[Path | None, typer.Option(help="Write the comparison as a page too.")] = None,
    factor: Annotated[
        float, typer.Option(min=1.0, help="Errors that grow by more are a regression, even within their bounds.")
    ] = 2.0,
    json: Json = False,
) -> int:
    """Compare two reports, regressions first; the exit status is 1 if there are any."""
    from xinheng.conformance.report import Comparison, comparison_html, read_report

    from ...output import print_json

    made = Comparison.of(read_report(before), read_report(after), factor)
    if html is not None:
        html.write_text(comparison_html(made), encoding="utf-8")
    if json:
        print_json(made.to_json())
    else:
        _print(made)
    return 1 if made.regressions else 0


def _print(made: Comparison) -> None:
    from ...output import print_table

    a, b = made.before, made.after
    print(f"{a.device.name} ({a.device.spec}): {a.badge} -> {b.device.name} ({b.device.spec}): {b.badge}")
    for name, old, new in made.facts:
        print(f"  {name}: {old} -> {new}")
    rows = [
        ("regression" if c.regression else "", c.kind.value, c.op, c.dtype, f"{c.before} -> {c.after}", len(c.items))
        for c in made.changes[:SHOWN]
    ]
    if rows:
        print()
        print_table(("", "change", "op", "dtype", "from, to", "items"), rows)
    if len(made.changes) > SHOWN:
        print(f"and {len(made.changes) - SHOWN} more; --json has all")
    for change in made.regressions[:SHOWN]:
        if change.replay:
            print(f"\nto see it again: {change.replay}")
            break
    print(f"\n{made.headline}")
