"""The entry point: it collects the commands and turns errors into one sentence and an exit status."""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import Annotated

import typer

from .commands import (
    bench,
    config,
    conformance,
    devices,
    doctor,
    explain,
    import_model,
    models,
    ops,
    plugin,
    report,
    run,
    run_onnx,
    version,
)

app = typer.Typer(
    name="xinheng",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("explain")(explain.explain)
app.command("bench")(bench.bench)
app.command("run-onnx")(run_onnx.run_onnx)
app.command("import")(import_model.import_model)
app.command("devices")(devices.devices)
app.command("doctor")(doctor.doctor)
app.command("ops")(ops.ops)
app.command("pull")(models.pull)
app.command("list")(models.list_models)
app.command("show")(models.show)
app.command("rm")(models.remove)
app.command("config")(config.config)
app.add_typer(conformance.app, name="conformance")
app.add_typer(report.app, name="report")
app.add_typer(plugin.app, name="plugin")
app.command("version")(version.version)


def _show_version(wanted: bool) -> None:
    if wanted:
        version.version()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show versions and exit.")
    ] = False,
) -> None:
    """Run language models on any accelerator, and see what runs where."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 is success, 1 an error explained on standard error (or nobody reads the output any more), 2 wrong usage, 130 ^C.
    """
    given = sys.argv[1:] if arguments is None else arguments
    gc.set_threshold(
        100_000
    )  # imports and graphs are objects that stay: searching them for garbage takes a tenth of a start
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without some character shows a question mark for it
    try:
        result = app(given, prog_name="xinheng", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        status = _explain(error, "--json" in given)
        if status is None:
            raise
        return status
    return result if isinstance(result, int) else 0


def _explain(error: Exception, machine: bool) -> int | None:
    """Tell of an error and return the exit status; None for one that only a programmer understands."""
    show = getattr(error, "show", None)
    if show is not None:  # wrong usage, which knows how to show itself
        show()
        return int(getattr(error, "exit_code", 2))
    if isinstance(error, typer.Abort):
        return 130
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
        return 1
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return _report(type(error).__name__, f"{where}{error.strerror or error}", machine)
    from xinheng.core.errors import XinhengError

    return _report(type(error).__name__, str(error), machine) if isinstance(error, XinhengError) else None


def _report(kind: str, message: str, machine: bool) -> int:
    if machine:
        from .output import print_json

        print_json({"error": {"type": kind, "message": message}})
    print(f"xinheng: {message}", file=sys.stderr)
    return 1
