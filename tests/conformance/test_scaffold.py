"""A new plugin works at once: it is found, keeps the contract, and its own tests pass."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xinheng.conformance.scaffold import LICENSES, scaffold
from xinheng.core.errors import PluginError

from ..examples.conftest import ROOT, plain_environment


def called(*arguments: object, folder: Path, sites: tuple[Path, ...] = (), status: int = 0) -> str:
    """Run Python in a folder and return what it prints."""
    command = [sys.executable, *map(str, arguments)]
    environment = plain_environment(*sites)
    told = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert told.returncode == status, told.stdout + told.stderr
    return told.stdout + told.stderr


def test_a_new_plugin_works_at_once(tmp_path: Path) -> None:
    printed = called("-m", "xinheng", "plugin", "new", "my-chip", "--vendor", "My & Co", folder=tmp_path)
    folder = tmp_path / "xinheng-my-chip"
    assert "xinheng plugin check my-chip" in printed
    where = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    called("-m", "pip", "install", *where, "--target", tmp_path / "site", folder, folder=tmp_path)
    sites = (tmp_path / "site",)
    found = json.loads(called("-m", "xinheng", "devices", "--json", folder=tmp_path, sites=sites))
    (mine,) = (record for record in found if record["name"] == "my-chip")
    assert (mine["status"], mine["devices"][0]["name"], mine["distribution"]) == (
        *("available", "My & Co", "xinheng-my-chip"),
    )
    told = called("-m", "pytest", "-W", "error", "-p", "no:cacheprovider", folder=folder, sites=sites)
    assert " passed, " in told and "failed" not in told
    checked = json.loads(called("-m", "xinheng", "plugin", "check", "my-chip", "--json", folder=tmp_path, sites=sites))
    assert checked["errors"] == 0
    assert {s["code"] for s in checked["symptoms"]} == {"level.ops"}  # what to write next
    called("-m", "xinheng", "plugin", "new", "my-chip", "--dir", "again", folder=tmp_path, sites=sites, status=1)


@pytest.mark.parametrize("license", [*LICENSES, "LicenseRef-Proprietary"])
def test_every_license_and_clean_code(tmp_path: Path, license: str) -> None:
    files = scaffold("acme9", tmp_path / "new", license=license, vendor="Acme")
    text = (tmp_path / "new" / "pyproject.toml").read_text(encoding="utf-8")
    assert f'license = "{license}"' in text
    written = tmp_path / "new" / "LICENSE"
    assert (written in files) == (license in LICENSES) == written.exists()
    if license == "Apache-2.0":
        assert written.read_bytes() == (ROOT / "LICENSE").read_bytes()
    elif written.exists():
        assert "Acme" in written.read_text(encoding="utf-8")
    for check in (["check"], ["format", "--check"]):
        called("-m", "ruff", *check, "--line-length", "120", "--no-cache", ".", folder=tmp_path / "new")


def test_the_code_has_types(tmp_path: Path) -> None:
    scaffold("acme9", tmp_path / "new")
    called("-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", "src", folder=tmp_path / "new")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Chip", "take lower case letters"),
        ("9chip", "take lower case letters"),
        ("chip:0", "take lower case letters"),
        ("", "take lower case letters"),
        ("auto", "is reserved"),
        ("cpu", "already registers 'cpu'"),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        scaffold(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_package_of_the_name_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "xinheng_taken.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match="a package 'xinheng_taken' is installed already"):
        scaffold("taken", tmp_path / "new")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: scaffold("acme9", folder, license="none at all!"), "is no SPDX expression"),
        (lambda folder: [folder.mkdir(), (folder / "x").touch(), scaffold("acme9", folder)], "is there already"),
        (lambda folder: [folder.touch(), scaffold("acme9", folder)], "is there already"),
    ],
)
def test_what_else_is_refused(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        make(tmp_path / "new")
