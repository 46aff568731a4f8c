"""Broken plugins, installed as real distributions: each is reported with its reason, and none breaks anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GOOD = """
from xinheng.core import Backend, DeviceInfo
class Plugin(Backend):
    name, api_version = "{name}", {version}
    def probe(self): return [DeviceInfo("{name}:0", "a card")]
    def open(self, spec, options=None): raise AssertionError
"""

BROKEN = {
    "raises": ("raises", "xinheng-raises", "import no_such_sdk", "failed", "No module named 'no_such_sdk'"),
    "exits": ("exits", "xinheng-exits", "import sys; sys.exit('no licence')", "failed", "SystemExit: no licence"),
    "major": (
        "major",
        "xinheng-major",
        GOOD,
        "incompatible",
        "it speaks version 7.2 of the backend contract, this xinheng",
    ),
    "one": ("twice", "xinheng-one", GOOD, "failed", "xinheng-one 1.0 and xinheng-two 1.0 both register this name"),
    "two": ("twice", "xinheng-two", GOOD, "failed", "xinheng-one 1.0 and xinheng-two 1.0 both register this name"),
    "taken": ("cpu", "xinheng-taken", GOOD, "failed", "both register this name; uninstall one of them"),
}
"""Name of the entry point, distribution, code, status and reason."""


def write(folder: Path, key: str) -> None:
    name, distribution, code, _, _ = BROKEN[key]
    module = distribution.replace("-", "_")
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[xinheng.backends]\n{name} = {module}:Plugin\n")
    version = "(7, 2)" if key == "major" else "(1, 0)"
    (folder / f"{module}.py").write_text(code.format(name=name, version=version) if code is GOOD else code)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All broken plugins but the one that takes the name of the processor."""
    folder = tmp_path_factory.mktemp("site")
    for key in BROKEN:
        if key != "taken":
            write(folder, key)
    return folder


def xinheng(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "1000", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "xinheng", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def records(site: Path) -> dict[str, dict[str, Any]]:
    done = xinheng(site, "devices", "--json")
    assert done.returncode == 0, done.stderr
    return {record["name"]: record for record in json.loads(done.stdout)}


def test_each_is_reported_with_its_reason_and_the_others_work(site: Path) -> None:
    found = records(site)
    for key in ("raises", "exits", "major", "one"):
        name, _, _, status, reason = BROKEN[key]
        assert (found[name]["status"], found[name]["devices"]) == (status, [])
        assert reason in found[name]["error"]
    assert found["cpu"]["status"] == "available"
    assert found["sim"]["devices"][0]["spec"] == "sim:exact"


def test_the_table_shows_them_too(site: Path) -> None:
    done = xinheng(site, "devices")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    for key in ("raises", "exits", "major", "one"):
        name, _, _, status, reason = BROKEN[key]
        assert status in rows[name] and reason in rows[name]
    assert "available" in rows["cpu:0"]


def test_models_run_beside_them(site: Path, model: Path) -> None:
    for device in ("auto", "sim:exact"):
        done = xinheng(site, "run", str(model), "x", "--device", device, "--max-tokens", "2")
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("key", ["raises", "exits", "major", "one"])
def test_asked_for_by_name_it_is_one_sentence(site: Path, model: Path, key: str) -> None:
    name, _, _, status, reason = BROKEN[key]
    done = xinheng(site, "run", str(model), "x", "--device", f"{name}:0")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"xinheng: backend {name!r} of ")
    assert f"is {status}: " in done.stderr and reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_plugin_cannot_take_the_name_of_another(tmp_path: Path) -> None:
    write(tmp_path, "taken")
    cpu = records(tmp_path)["cpu"]
    assert cpu["status"] == "failed" and BROKEN["taken"][-1] in cpu["error"]
    assert "xinheng-taken 1.0" in cpu["error"] and "xinheng 0.1.0" in cpu["error"]
