"""The local model store: files by their checksum, models by name, and nothing visible before it is complete.

blobs/sha256-<hex>      the bytes of a file, once however many models hold it
manifests/<name>.json   what a model consists of and where it came from
files/<name>/<path>     the model as a program wants to see it: links into blobs
partial/<name>/         a pull that has not finished; the next pull goes on from there
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from xinheng.core.errors import FormatError, RequestError, nearest

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, the bytes done so far, and the bytes in total where they are known."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a model: its path inside the model, size in bytes and SHA-256."""

    path: str
    size: int
    sha256: str

    @property
    def blob(self) -> str:
        return f"sha256-{self.sha256}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A stored model: name, the reference it was pulled from, its files, and when (ISO 8601, UTC)."""

    name: str
    source: str
    files: tuple[StoredFile, ...]
    pulled: str

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


class Store:
    """Models in one folder, which several processes may use at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def list(self) -> tuple[Manifest, ...]:
        """Every complete model, by name."""
        return tuple(_read(path) for path in sorted((self.root / "manifests").glob("*.json")))

    def find(self, name: str) -> Manifest | None:
        """The model of that name; without "@version" the one pulled last."""
        found = [manifest for manifest in self.list() if name in (manifest.name, manifest.name.partition("@")[0])]
        return max(found, key=lambda manifest: (manifest.name == name, manifest.pulled), default=None)

    def show(self, name: str) -> Manifest:
        """Like `find`, but RequestError if there is no such model."""
        manifest = self.find(name)
        if manifest is None:
            names = [known.name for known in self.list()]
            hint = nearest(name, names) or f"; stored: {', '.join(names) or 'nothing yet'}"
            raise RequestError(f"no model {name!r} in {self.root}{hint}")
        return manifest

    def path(self, manifest: Manifest) -> Path:
        """Where a program finds the model: the file if it is one file, else the folder.

        Raises:
            FormatError: a blob is gone or has another size.
        """
        folder = self.root / "files" / _safe(manifest.name)
        for file in manifest.files:
            blob = self.root / "blobs" / file.blob
            if not blob.is_file() or blob.stat().st_size != file.size:
                raise FormatError(
                    f"model {manifest.name!r}: {file.path} is missing or cut short in {blob}; "
                    "remove the model from the store and pull it again"
                )
            _link(folder / file.path, blob)
        return folder / manifest.files[0].path if len(manifest.files) == 1 else folder

    def verify(self, name: str, progress: Progress | None = None) -> tuple[str, ...]:
        """Read every byte of a model and say in a sentence for each file what is wrong with it; () if all is well."""
        problems = []
        for file in self.show(name).files:
            blob = self.root / "blobs" / file.blob
            if not blob.is_file():
                problems.append(f"{file.path}: {blob} is missing")
            elif (found := sha256_of(blob, progress)) != file.sha256:
                problems.append(f"{file.path}: SHA-256 is {found}, expected {file.sha256}")
        return tuple(problems)

    def remove(self, name: str) -> Manifest:
        """Delete a model; files that another model holds too stay. RequestError if there is no such model."""
        with self._locked(self.root / "lock"):
            manifest = self.show(name)
            self._manifest_path(manifest.name).unlink()
            shutil.rmtree(self.root / "files" / _safe(manifest.name), ignore_errors=True)
            self._collect()
        return manifest

    @contextmanager
    def pulling(self, name: str) -> Iterator[Path]:
        """A folder for an unfinished pull, for one process at a time; it outlives every error but FormatError."""
        folder = self.root / "partial" / _safe(name)
        with self._locked(folder.with_name(f"{folder.name}.lock")):
            folder.mkdir(exist_ok=True)
            try:
                yield folder
            except FormatError:
                shutil.rmtree(folder)
                raise
            shutil.rmtree(folder)

    def commit(self, name: str, source: str, files: Mapping[str, Path], progress: Progress | None = None) -> Manifest:
        """Move finished files (path inside the model: file inside `pulling`) into the store as one model."""
        stored = tuple(
            StoredFile(_relative(path), file.stat().st_size, sha256_of(file, progress)) for path, file in files.items()
        )
        manifest = Manifest(name, source, stored, datetime.now(UTC).isoformat(timespec="microseconds"))
        with self._locked(self.root / "lock"):
            for entry, file in zip(stored, files.values(), strict=True):
                _replace(file, self.root / "blobs" / entry.blob)
            unfinished = self._manifest_path(name).with_suffix(f".{os.getpid()}")
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")
            _replace(unfinished, self._manifest_path(name))
            shutil.rmtree(self.root / "files" / _safe(name), ignore_errors=True)
            self._collect()
        return manifest

    def _manifest_path(self, name: str) -> Path:
        return self.root / "manifests" / f"{_safe(name)}.json"

    def _collect(self) -> None:
        held = {file.blob for manifest in self.list() for file in manifest.files}
        for blob in (self.root / "blobs").glob("sha256-*"):
            if blob.name not in held:
                blob.unlink()

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the kernel lets go when the process ends, however it ends
            yield


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """The SHA-256 of a file in hexadecimal."""
    digest, total, done = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            done += len(chunk)
            if progress:
                progress(f"checking {path.name}", done, total)
    return digest.hexdigest()


def _read(path: Path) -> Manifest:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(StoredFile(_relative(file.pop("path")), **file) for file in fields.pop("files"))
        return Manifest(files=files, **fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(
            f"{path} is no manifest of a stored model ({error}); delete it and pull the model again"
        ) from None


def _safe(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@+/-]*", name):
        raise RequestError(f"{name!r} cannot be the name of a stored model; use letters, digits and . _ - + @ /")
    return name.replace("/", "%2F")


def _relative(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\\" in path or str(pure) != path or path in ("", "."):
        raise FormatError(f"{path!r} is no plain relative path of a file in a model")
    return path


def _replace(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file:
        os.fsync(file.fileno())
    source.replace(target)


def _link(path: Path, blob: Path) -> None:
    target = os.path.relpath(blob, path.parent)
    if path.is_symlink() and os.readlink(path) == target:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(target)
    unfinished.replace(path)
