"""The entry point: quick, quiet, and a sentence for every error."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from .conftest import Command

COMMANDS = ("run", "explain", "devices", "ops", "pull", "list", "show", "rm", "config", "version")

MEASURE = """
import contextlib, io, json, resource, sys
with contextlib.redirect_stdout(io.StringIO()):
    {work}
usage = resource.getrusage(resource.RUSAGE_SELF)
heavy = [name for name in ("torch", "mindspore", "onnx", "transformers", "numpy") if name in sys.modules]
print(json.dumps([usage.ru_utime + usage.ru_stime, heavy]))
"""


def measured(work: str) -> tuple[float, list[str]]:
    """Processor seconds of a fresh process, and which heavy packages it imported."""
    command = [sys.executable, "-c", MEASURE.format(work=work)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    seconds, heavy = json.loads(done.stdout)
    return seconds, heavy


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["run", "--nonsense"]], ids=" ".join)
def test_help_is_quick_and_imports_no_framework(arguments: list[str]) -> None:
    quiet = "contextlib.redirect_stderr(io.StringIO())"
    seconds, heavy = measured(f"from xinheng.cli.main import main\n    with {quiet}: main({arguments!r})")
    assert seconds < 0.5
    assert heavy == []


def test_the_core_imports_no_framework() -> None:
    seconds, heavy = measured("import xinheng.core")
    assert seconds < 1.0
    assert heavy == ["numpy"]


def test_the_engine_imports_no_framework() -> None:
    assert measured("import xinheng.engine")[1] == ["numpy"]


def test_listing_plugins_imports_no_framework() -> None:
    assert measured('from xinheng.cli.main import main\n    main(["devices"])')[1] == ["numpy"]


def test_help_names_every_command(xinheng: Command) -> None:
    done = xinheng("--help")
    assert done.status == 0
    assert all(command in done.out for command in COMMANDS)
    for command in COMMANDS:
        assert xinheng(command, "-h").status == 0
    assert xinheng().status == 2


@pytest.mark.parametrize("arguments", [["version"], ["--version"], ["version", "--json"]], ids=" ".join)
def test_version(xinheng: Command, arguments: list[str]) -> None:
    done = xinheng(*arguments)
    assert done.status == 0
    if "--json" in arguments:
        data = json.loads(done.out)
        assert set(data) == {"xinheng", "plugin_api", "op_set", "python", "platform", "packages"}
        assert "torch" in data["packages"]
    else:
        assert done.out.startswith("xinheng 0.")
        assert "torch 2" in done.out


def test_a_reader_of_a_few_lines_is_no_error() -> None:
    for command in ("ops", "devices", "config", "version"):
        line = f"{sys.executable} -m xinheng {command} | true; {sys.executable} -m xinheng {command} | head -n 1"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        assert len(done.stdout.splitlines()) == 1


def test_output_that_goes_to_no_terminal_has_no_colours_and_a_row_is_a_line(process: Command) -> None:
    done = process("ops", TERM="xterm-256color", COLUMNS="40")
    assert "\x1b" not in done.out + done.err
    rows = done.out.splitlines()
    assert rows[0].split() == ["op", "family", "kind", "tolerance", "meaning"]
    assert all(len(row.split()) > 4 and row == row.rstrip() for row in rows)
    assert "\x1b" not in process("--help", TERM="xterm-256color", NO_COLOR="1").out


def test_a_full_disk_is_a_sentence() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "xinheng", "ops"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "xinheng: No space left on device\n"
