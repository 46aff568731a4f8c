"""What a user installs: the wheel holds every file of every layer, and works outside this repository."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = sorted(path.name for path in (ROOT / "src" / "xinheng").iterdir() if path.is_symlink())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LITTER = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")


def layer_files() -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and source distribution, built from a copy that has nothing but what belongs to them."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for folder in ("src", *LAYERS):
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=LITTER)
    code = "import setuptools.build_meta as build; build.build_sdist('dist'); build.build_wheel('dist')"
    result = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "would be ignored" not in result.stdout + result.stderr
    return next((tree / "dist").glob("*.whl")), next((tree / "dist").glob("*.tar.gz"))


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(target)
    return target


def test_the_wheel_holds_every_file(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if name.startswith("xinheng/")}
    own = {"xinheng/__init__.py", "xinheng/__main__.py", "xinheng/py.typed"}
    assert names == {f"xinheng/{name}" for name in layer_files()} | own


def test_the_source_distribution_holds_every_file(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/xinheng/{name}" for name in layer_files()} - names == set()
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names


def test_the_metadata_is_what_pyproject_says(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info")
    table = configparser.ConfigParser()
    table.optionxform = str  # type: ignore[assignment,method-assign]
    table.read(metadata / "entry_points.txt")
    assert dict(table["xinheng.backends"]) == PROJECT["entry-points"]["xinheng.backends"]
    assert dict(table["console_scripts"]) == PROJECT["scripts"]
    text = (metadata / "METADATA").read_text(encoding="utf-8")
    for extra in PROJECT["optional-dependencies"]:
        assert f"Provides-Extra: {extra}\n" in text
    assert (metadata / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_every_entry_point_leads_to_something(installed: Path) -> None:
    targets = [*PROJECT["entry-points"]["xinheng.backends"].values(), *PROJECT["scripts"].values()]
    for target in targets:
        module = installed / target.partition(":")[0].replace(".", "/")
        assert module.with_suffix(".py").is_file() or (module / "__init__.py").is_file(), target


def test_the_installed_package_works_elsewhere(installed: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(installed)!r})
import xinheng
from xinheng.core.plugins import PluginManager
assert xinheng.__file__.startswith({str(installed)!r}), xinheng.__file__
device = PluginManager().open("sim:exact")
print(xinheng.__version__, device.spec)
"""
    result = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert result.stderr == ""
    assert result.stdout.split() == [PROJECT["version"], "sim:exact"]
