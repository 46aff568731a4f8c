"""A tiny model for the commands, and a way to run them here or as a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from xinheng.cli.main import main

from ..engine import tiny


class Outcome(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of two layers that says random things."""
    return tiny.write_model(tmp_path_factory.mktemp("models") / "tiny-llama", tiny.LLAMA, seed=1)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings but those a test makes."""
    unwanted = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONIOENCODING", "PYTHONUNBUFFERED")
    for name in list(os.environ):
        if name.startswith("XINHENG_") or name in unwanted:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def xinheng(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process."""

    def run(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        told = capsys.readouterr()
        return Outcome(status, told.out, told.err)

    return run


@pytest.fixture
def process() -> Command:
    """Run a command as a process."""

    def run(*arguments: str | Path, stdin: bytes | None = None, **environment: str) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "xinheng", *map(str, arguments)],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            env={**os.environ, **environment},
            timeout=60,
        )
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
