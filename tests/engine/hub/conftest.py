"""Wheels as a package index would serve them, and pip pointed at the folder that holds them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from xinheng.engine.hub import Store

MakeWheel = Callable[..., Path]


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks for packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def make_wheel(index: Path) -> MakeWheel:
    """Write a wheel of `files` into the index; `damage` maps members to the bytes they hold instead of those in RECORD."""

    def make(
        package: str, files: Mapping[str, bytes], version: str = "1.0", damage: Mapping[str, bytes] | None = None
    ) -> Path:
        stem = f"{package.replace('-', '_')}-{version}"
        metadata = {
            f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
            f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        everything = {**files, **metadata}
        record = "\n".join([*(record_line(name, data) for name, data in everything.items()), ""])
        path = index / f"{stem}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in {**everything, **(damage or {})}.items():
                archive.writestr(name, data)
            archive.writestr(f"{stem}.dist-info/RECORD", record)
        return path

    return make
