"""Wheels as a package index would serve them, and pip pointed at the folder that holds them."""

from __future__ import annotations

import base64
import hashlib
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from xinheng.core.errors import RequestError
from xinheng.engine.hub import Progress, Store, package_index

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
def quick_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take wheels from the index by copying: what pip would do, without starting it."""

    def copy(requirement: str, folder: Path, label: str, progress: Progress | None) -> None:
        package, _, version = requirement.partition("==")
        found = sorted(index.glob(f"{package.replace('-', '_')}-{version or '*'}-py3-none-any.whl"))
        if not found:
            raise RequestError(f"could not download {requirement!r}")
        folder.mkdir()
        shutil.copy(found[-1], folder)
        if progress:
            progress(f"downloading {label}", found[-1].stat().st_size, found[-1].stat().st_size)

    monkeypatch.setattr(package_index, "_run_pip", copy)


@pytest.fixture
def make_wheel(index: Path) -> MakeWheel:
    """Write a wheel of `files` into the index; `damage` holds bytes of members that RECORD does not know about."""

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
