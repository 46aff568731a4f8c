"""Plugins of this repository, built and installed into folders of their own, and found there by their entry points."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from ..engine import tiny

ROOT = Path(__file__).parents[2]
LITTER = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
Install = Callable[[Path], Path]
Run = Callable[..., str]


@pytest.fixture(scope="session")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Build a package and install it into a new folder, which is returned; the second time it is there already."""

    @cache
    def installed(source: Path) -> Path:
        folder = tmp_path_factory.mktemp(source.name)
        shutil.copytree(source, folder / "source", ignore=LITTER)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-build-isolation", "--target", str(folder / "site"), str(folder / "source")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stdout + result.stderr
        return folder / "site"

    return installed


@contextmanager
def on_path(*sites: Path) -> Iterator[None]:
    """Have installed packages in this process; what was imported from them is forgotten afterwards."""
    before = set(sys.modules)
    sys.path[:0] = map(str, sites)
    try:
        yield
    finally:
        del sys.path[: len(sites)]
        for name in set(sys.modules) - before:
            if any(str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(site)) for site in sites):
                del sys.modules[name]


def plain_environment(*sites: Path) -> dict[str, str]:
    """The environment without settings of ours, with installed packages on the path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XINHENG_")}
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, sites), *filter(None, [environment.get("PYTHONPATH")])])
    return environment | {"COLUMNS": "1000", "NO_COLOR": "1"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python with installed packages on the path and return what it prints."""

    def called(*arguments: str | Path, sites: tuple[Path, ...] = (), folder: Path | None = None) -> str:
        command = [sys.executable, *map(str, arguments)]
        environment = plain_environment(*sites)
        result = subprocess.run(
            command, cwd=folder or tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return called


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("models") / "tiny-llama", tiny.LLAMA)


@pytest.fixture(scope="session")
def biased_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("models") / "biased-llama", tiny.LLAMA_BIAS)
