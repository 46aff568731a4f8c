"""`xinheng conformance`: whether a device computes what the op set says."""

from __future__ import annotations

import typer

from . import attribute, case, compare, fingerprint, listing, merge, run, selftest

app = typer.Typer(
    no_args_is_help=True,
    help="Whether a device computes what the op set says, op by op, and which level it reaches.",
)
app.command("run")(run.run)
app.command("list")(listing.list_items)
app.command("case")(case.case)
app.command("merge")(merge.merge)
app.command("compare")(compare.compare)
app.command("attribute")(attribute.attribute)
app.command("fingerprint")(fingerprint.fingerprint)
app.command("selftest")(selftest.selftest)
