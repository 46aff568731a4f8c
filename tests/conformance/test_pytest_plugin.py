"""The plugin for pytest: an item is a test, whatever ends it; the ledger decides what a failure means."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from xinheng.conformance.case import Tier
from xinheng.conformance.suites.ops import OpSuite
from xinheng.core.suite import Selection

FILE = """
from xinheng.conformance.pytest_plugin import conformance_tests

test_it = conformance_tests({})
"""
ENTRY = """
[[expectation]]
id = "{id}"
owner = "somebody"
class = "{kind}"
issue = "issue 17"
expires = {expires}
"""


class Run:
    """A folder with a test file, and pytest on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, arguments: str, *options: str, status: int = 0, ledger: str = "") -> str:
        (self.folder / "test_device.py").write_text(FILE.format(arguments), encoding="utf-8")
        (self.folder / "known.toml").write_text(ledger, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "-rA", *options]
        environment = {**os.environ, "COLUMNS": "400"}
        told = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert told.returncode == status, told.stdout + told.stderr
        return told.stdout


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def nodes(*items: str) -> list[str]:
    return [f"test_device.py::test_it[{item}]" for item in items]


def counted(told: str) -> dict[str, int]:
    """Numbers of the last line by word."""
    return {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|xfailed)", told)}


def ids(op: str, dtype: str = "float32") -> list[str]:
    return [item.id for item in OpSuite(Selection(Tier.DEFAULT, frozenset({op}), frozenset({dtype}))).items()]


def test_every_item_is_a_test(run: Run) -> None:
    told = run('"sim:exact", ops=["neg"], dtypes=["float32"]')
    for id in ids("neg"):
        assert f"PASSED test_device.py::test_it[{id}]" in told
    assert "PASSED test_device.py::test_it[the number of items]" in told
    assert counted(told) == {"passed": len(ids("neg")) + 1}


def test_options_of_the_command_line_win(run: Run) -> None:
    told = run('"sim:exact", ops=["neg"], dtypes=["bfloat16"], isolate=False', "--xinheng-device", "sim:no-bf16")
    assert counted(told) == {"passed": 1, "skipped": len(ids("neg", "bfloat16"))}
    assert "the device lists no bfloat16" in told
    told = run('"sim:exact", ops=["erf"]', "--xinheng-level", "L0", "--collect-only", "-q")
    assert "neg/f32/" in told and "erf/" not in told


def test_a_crash_is_the_failure_of_its_item_only(run: Run) -> None:
    odd, even = "softmax/f32/3x7/normal/0", "softmax/f32/2x320_long/normal/0"
    told = run('"sim:crashing", ops=["softmax"], dtypes=["float32"]', *nodes(odd, even), status=1)
    assert f"FAILED test_device.py::test_it[{odd}]" in told and f"PASSED test_device.py::test_it[{even}]" in told
    assert counted(told) == {"failed": 1, "passed": 1}
    assert "crash crash: " in told and "SIGSEGV" in told
    assert f"to see it again: xinheng conformance case {odd} --device sim:crashing" in told


def test_the_ledger_decides(run: Run) -> None:
    denied, right = ids("gelu"), ids("neg")[0]
    what = '"sim:denying-supports", ops=["gelu", "neg"], dtypes=["float32"], ledger="known.toml", isolate=False'
    known = ENTRY.format(id=denied[0], kind="bug", expires="2999-01-01")
    told = run(what, *nodes(denied[0], right, "the ledger"), ledger=known)
    assert counted(told) == {"xfailed": 1, "passed": 2} and "bug, somebody, issue 17: says that it does not" in told
    ledger = known + "".join(
        ENTRY.format(id=id, kind=kind, expires=expires)
        for id, kind, expires in (
            (right, "bug", "2999-01-01"),
            (denied[1], "bug", "2001-01-01"),
            (denied[2], "unsupported", "2999-01-01"),
            ("gelu/f32/nonsense/normal/0", "flaky", "2999-01-01"),
        )
    )
    told = run(what, *nodes(*denied[:4], right, "the ledger"), ledger=ledger, status=1)
    assert counted(told) == {"xfailed": 1, "failed": 5}
    for message in ("unexpected pass: ", "expired: ", "contradicted: ", "fail supports: says that it does not"):
        assert message in told
    assert "there is no item 'gelu/f32/nonsense/normal/0'; remove or correct it" in told


def test_in_one_process_if_wanted(run: Run) -> None:
    told = run('"sim:exact", ops=["neg"], dtypes=["float32"], isolate=False')
    assert counted(told) == {"passed": len(ids("neg")) + 1}


def test_a_device_that_is_not_there_fails_every_test_with_the_reason(run: Run) -> None:
    told = run('"nonsense:0", ops=["neg"], dtypes=["float32"]', status=1)
    assert told.count("no backend plugin named 'nonsense' is installed") >= len(ids("neg"))
    assert counted(told)["failed"] == len(ids("neg"))


def test_other_suites_too(run: Run) -> None:
    told = run('"sim:exact", suites=["supports"], ops=["neg"], isolate=False')
    assert counted(told)["passed"] > 2


def test_it_costs_nothing_where_it_is_not_used(run: Run) -> None:
    (run.folder / "conftest.py").write_text(
        "import sys\n"
        "def pytest_sessionfinish():\n"
        "    used = sorted(m for m in sys.modules if m.startswith('xinheng') or m in ('numpy', 'torch', 'pydantic'))\n"
        "    print('loaded', used)\n"
    )
    (run.folder / "test_other.py").write_text("def test_nothing(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_other.py"]
    told = subprocess.run(command, cwd=run.folder, capture_output=True, text=True, timeout=60, check=True).stdout
    loaded = ["xinheng", "xinheng.conformance", "xinheng.conformance.pytest_plugin"]
    assert f"loaded {loaded}" in told
    assert "xinheng" not in told.replace(f"loaded {loaded}", "")
