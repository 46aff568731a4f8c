"""The entry point: it collects the commands and turns errors into one sentence and an exit status."""

from __future__ import annotations

import sys

import typer

from .commands import config, devices, explain, models, ops, run, version

app = typer.Typer(
    name="xinheng",
    help="Run language models on any accelerator, and see what runs where.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("explain")(explain.explain)
app.command("devices")(devices.devices)
app.command("ops")(ops.ops)
app.command("pull")(models.pull)
app.command("list")(models.list_models)
app.command("show")(models.show)
app.command("rm")(models.remove)
app.command("config")(config.config)
app.command("version")(version.version)


def main(arguments: list[str] | None = None) -> int:
    """Run one command: 0 is success, 1 an error explained on standard error, 2 wrong usage, 130 an interruption."""
    from xinheng.core.errors import XinhengError

    given = sys.argv[1:] if arguments is None else arguments
    try:
        result = app(given, prog_name="xinheng", standalone_mode=False)
    except XinhengError as error:
        return _report(type(error).__name__, str(error), "--json" in given)
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # click's own usage errors know how to show themselves; nothing else is swallowed
        if not hasattr(error, "show"):
            raise
        error.show()
        return int(getattr(error, "exit_code", 2))
    return result if isinstance(result, int) else 0


def _report(kind: str, message: str, machine: bool) -> int:
    if machine:
        from .output import print_json

        print_json({"error": {"type": kind, "message": message}})
    print(f"xinheng: {message}", file=sys.stderr)
    return 1
