"""Writing a new plugin: the names it gets, and the files that are made of the templates beside this one."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined

from xinheng.core.errors import DeviceError, PluginError
from xinheng.core.hal import API_VERSION, DeviceSpec
from xinheng.core.plugins import PluginManager

RESERVED = frozenset({"auto", "reference"})
"""What settings call no plugin but something of ours."""
LICENSES = ("Apache-2.0", "BSD-3-Clause", "MIT")
"""Those whose text is written; others only stand in the metadata."""
SPDX = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*")
FILES = {
    "pyproject.toml": "pyproject.toml.j2",
    "README.md": "readme.md.j2",
    ".gitignore": "gitignore.j2",
    "src/{package}/__init__.py": "backend.py.j2",
    "src/{package}/kernels.py": "kernels.py.j2",
    "src/{package}/expectations.toml": "expectations.toml.j2",
    "src/{package}/py.typed": "",
    "tests/test_conformance.py": "test_conformance.py.j2",
}
"""Files of a plugin and their templates; the empty name stands for an empty file."""
ON_TORCH = {
    "README.md": "torch_readme.md.j2",
    "src/{package}/__init__.py": "torch_backend.py.j2",
    "src/{package}/kernels.py": "torch_kernels.py.j2",
    "tests/test_conformance.py": "torch_test_conformance.py.j2",
}
"""What differs for a chip that torch addresses already."""


def scaffold(
    name: str, folder: Path, *, license: str = "Apache-2.0", vendor: str | None = None, torch: str | None = None
) -> list[Path]:
    """Write a plugin called `name` into a new folder and return its files.

    Args:
        license: an SPDX expression.
        vendor: as people write it; by default the name.
        torch: the device type by which torch addresses the chip, if it does; every op runs at once then.

    Raises:
        PluginError: the name cannot be one or is taken, the license is none, or the folder has something in it.
    """
    check_name(name)
    if not SPDX.fullmatch(license):
        raise PluginError(f"license {license!r} is no SPDX expression; one looks like {' or '.join(LICENSES)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PluginError(f"{folder} is there already; choose another folder with --dir")
    if torch is not None and not re.fullmatch("[a-z][a-z0-9]*", torch):
        raise PluginError(f"torch has no device type {torch!r}: it is a word of lower case letters")
    package = package_name(name)
    shown = vendor or " ".join(part.capitalize() for part in re.split("[-_]", name))
    values = {
        "name": name,
        "package": package,
        "title": "".join(part.capitalize() for part in re.split("[-_]", name)),
        "vendor": shown,
        "license": license,
        "year": datetime.now(UTC).year,
        "api_version": API_VERSION,
        "torch": torch,
    }
    environment = Environment(
        loader=FunctionLoader(_template), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    files = (
        FILES
        | ({} if torch is None else ON_TORCH)
        | ({"LICENSE": f"licenses/{license}.j2"} if license in LICENSES else {})
    )
    written = []
    for path, template in files.items():
        target = folder / path.format(package=package)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(environment.get_template(template).render(values) if template else "", encoding="utf-8")
        written.append(target)
    return written


def check_name(name: str) -> None:
    """PluginError, with the reason, if no plugin can be called `name` here."""
    try:
        parsed = DeviceSpec.parse(f"{name}:0")
    except DeviceError:
        parsed = None
    if parsed is None or parsed.backend != name or not package_name(name).isidentifier():
        raise PluginError(f"no plugin can be called {name!r}: take lower case letters, then also digits, - and _")
    if name in RESERVED:
        raise PluginError(f"the name {name!r} is reserved; choose another one")
    record = next((r for r in PluginManager().records(probe=False) if r.name == name), None)
    if record is not None:
        raise PluginError(f"{record.distribution} {record.version} already registers {name!r}; choose another name")
    if find_spec(package_name(name)) is not None:
        raise PluginError(f"a package {package_name(name)!r} is installed already; choose another name")


def package_name(name: str) -> str:
    """The Python package of a plugin."""
    return f"xinheng_{name.replace('-', '_')}"


def _template(name: str) -> str:
    folder = resources.files(__name__.rpartition(".")[0])
    return folder.joinpath("templates", *name.split("/")).read_text(encoding="utf-8")
