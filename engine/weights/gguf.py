"""GGUF files: a parser that believes no number in the file before it has compared it with the file's length.

Source of the format: the GGUF specification (`docs/gguf.md` in the ggml repository), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from xinheng.core.errors import FormatError
from xinheng.core.schemes import scheme

from .file_map import FileMap, malformed
from .gguf_names import hugging_face_name
from .stored import StoredCheckpoint, StoredTensor

MAGIC = b"GGUF"
MAX_RANK = 4
MAX_NAME = 65535  # bytes of a key (as the specification says) or of a tensor name
MAX_DEPTH = 4  # arrays within arrays
MAX_ELEMENTS = 1 << 24  # metadata values in one file; the largest vocabularies need about 2 million
DEFAULT_ALIGNMENT = 32
KEY_BYTES = 8 + 4 + 1  # the least a key-value pair takes: an empty key, a type, one byte
TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # the least a tensor record takes

BOOL, STRING, ARRAY = 7, 8, 9
NUMBERS: Mapping[int, np.dtype[Any]] = {
    number: np.dtype(code)
    for number, code in {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4"}.items()
} | {BOOL: np.dtype("u1"), 10: np.dtype("<u8"), 11: np.dtype("<i8"), 12: np.dtype("<f8")}
LEAST_BYTES: Mapping[int, int] = {
    **{kind: number.itemsize for kind, number in NUMBERS.items()},
    STRING: 8,
    ARRAY: 12,
}

SCHEME_OF_TYPE: Mapping[int, str] = {
    0: "float32", 1: "float16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k",
    12: "q4_k", 13: "q5_k", 14: "q6_k", 20: "iq4_nl", 23: "iq4_xs", 24: "int8", 25: "int16", 26: "int32", 27: "int64",
    28: "float64", 30: "bfloat16", 39: "mxfp4",
}  # fmt: skip

UNSUPPORTED_TYPES: Mapping[int, str] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.ASCII)


@dataclass(frozen=True)
class GGUFFile:
    """One parsed GGUF file; `tensors` carry the names of the file."""

    file: FileMap
    metadata: Mapping[str, Any]
    tensors: tuple[StoredTensor, ...]


class _Cursor:
    """A position in the file; every read checks that the bytes are there."""

    def __init__(self, file: FileMap) -> None:
        self.file = file
        self.position = 0
        self.elements = 0

    @property
    def left(self) -> int:
        return self.file.size - self.position

    def fail(self, what: str, reason: str) -> FormatError:
        return self.file.error(what, self.position, reason)

    def need(self, what: str, count: int) -> None:
        if count > self.left:
            raise self.fail(what, f"needs {count} bytes, the file has {self.left} left; download it again")

    def number(self, what: str, code: str) -> int:
        size = struct.calcsize(code)
        self.need(what, size)
        value: int = struct.unpack_from(code, self.file.data, self.position)[0]
        self.position += size
        return value

    def count(self, what: str, least: int) -> int:
        """A u64 count of things that take at least `least` bytes each."""
        start, value = self.position, self.number(what, "<Q")
        if value * least > self.left:
            raise self.file.error(what, start, f"{value} is more than the {self.left} bytes left can hold")
        return value

    def string(self, what: str, limit: int | None = None) -> str:
        start, size = self.position, self.count(f"length of {what}", 1)
        if limit is not None and size > limit:
            raise self.file.error(what, start, f"{size} bytes are more than the {limit} allowed")
        try:
            text = str(self.file.data[self.position : self.position + size], "utf-8")
        except UnicodeDecodeError as error:
            raise self.file.error(what, self.position + error.start, "is not UTF-8") from None
        self.position += size
        return text

    def strings(self, what: str, count: int) -> list[str]:
        """`count` strings, like `string` but without a call for each."""
        data, size, position = self.file.data, self.file.size, self.position
        out: list[str] = []
        length_at, add = struct.Struct("<Q").unpack_from, out.append
        for _ in range(count):
            start = position + 8
            stop = start + length_at(data, position)[0] if start <= size else size + 1
            if stop > size:
                raise self.file.error(f"element {len(out)} of {what}", position, "reaches beyond the end of the file")
            try:
                add(data[start:stop].decode())
            except UnicodeDecodeError as error:
                place = start + error.start
                raise self.file.error(f"element {len(out)} of {what}", place, "is not UTF-8") from None
            position = stop
        self.position = position
        return out

    def numbers(self, what: str, kind: int, count: int) -> list[Any]:
        values = np.frombuffer(self.file.data, NUMBERS[kind], count, self.position) if count else np.empty(0)
        if kind == BOOL and count and values.max() > 1:
            place = int((values > 1).argmax())
            raise self.file.error(what, self.position + place, f"a bool is 0 or 1, not {values[place]}")
        self.position += count * NUMBERS[kind].itemsize
        numbers: list[Any] = (values.astype(bool) if kind == BOOL else values).tolist()
        return numbers

    def array(self, what: str, depth: int) -> list[Any]:
        if depth > MAX_DEPTH:
            raise self.fail(what, f"arrays are nested more than {MAX_DEPTH} deep")
        kind = self.number(f"element type of {what}", "<I")
        if kind not in LEAST_BYTES:
            raise self.file.error(what, self.position - 4, f"unknown element type {kind}")
        start, count = self.position, self.count(f"length of {what}", LEAST_BYTES[kind])
        self.elements += count
        if self.elements > MAX_ELEMENTS:
            raise self.file.error(what, start, f"the file has more than {MAX_ELEMENTS} metadata values")
        if kind == STRING:
            return self.strings(what, count)
        if kind == ARRAY:
            return [self.array(what, depth + 1) for _ in range(count)]
        return self.numbers(what, kind, count)

    def value(self, what: str) -> Any:
        kind = self.number(f"type of {what}", "<I")
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            return self.array(what, 1)
        if kind not in NUMBERS:
            raise self.file.error(what, self.position - 4, f"unknown value type {kind}")
        self.need(what, NUMBERS[kind].itemsize)
        return self.numbers(what, kind, 1)[0]


def read_gguf(path: Path) -> GGUFFile:
    """Parse the header of one GGUF file; tensor data is only mapped.

    Raises:
        FormatError: the file is damaged or uses a version or tensor type that is not supported.
    """
    cursor = _Cursor(FileMap.open(path))
    tensor_count, key_count = _preamble(cursor)
    metadata = _metadata(cursor, key_count)
    alignment = _alignment(cursor.file, metadata)
    records: dict[str, StoredTensor] = {}
    for _ in range(tensor_count):
        start = cursor.position
        record = _tensor(cursor, alignment)
        if record.name in records:
            raise cursor.file.error(f"tensor {record.name!r}", start, "is there twice")
        records[record.name] = record
    data_start = -(-cursor.position // alignment) * alignment
    return GGUFFile(cursor.file, metadata, _placed(cursor.file, list(records.values()), data_start))


def _preamble(cursor: _Cursor) -> tuple[int, int]:
    cursor.need("magic", 4)
    if cursor.file.data[:4] != MAGIC:
        raise cursor.fail("magic", f"{cursor.file.data[:4]!r} instead of {MAGIC!r}; this is no GGUF file")
    cursor.position = 4
    version = cursor.number("version", "<I")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        kind = "big-endian files are" if swapped in (2, 3) else f"version {version} is"
        raise cursor.file.error("version", 4, f"{kind} not supported; convert the file to version 3, little-endian")
    place, tensors = cursor.position, cursor.number("tensor count", "<Q")
    keys = cursor.count("key count", KEY_BYTES)
    if tensors * TENSOR_BYTES + keys * KEY_BYTES > cursor.left:
        raise cursor.file.error("tensor count", place, f"{tensors} is more than the {cursor.left} bytes left can hold")
    return tensors, keys


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        start, key = cursor.position, cursor.string(f"key {index}", MAX_NAME)
        if key in metadata:
            raise cursor.file.error(f"key {key!r}", start, "is there twice")
        metadata[key] = cursor.value(f"key {key!r}")
    return metadata


def _alignment(file: FileMap, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise malformed(file.path, "key 'general.alignment'", f"{alignment!r} is not a power of two")
    return alignment


def _tensor(cursor: _Cursor, alignment: int) -> StoredTensor:
    """One tensor record; its `offset` still counts from the start of the data section."""
    name = cursor.string("tensor name", MAX_NAME)
    what = f"tensor {name!r}"
    start, rank = cursor.position, cursor.number(f"rank of {what}", "<I")
    if not 1 <= rank <= MAX_RANK:
        raise cursor.file.error(what, start, f"rank {rank} is not in 1..{MAX_RANK}")
    start, dims = cursor.position, [cursor.number(f"dimensions of {what}", "<q") for _ in range(rank)]
    if min(dims) < 1:
        raise cursor.file.error(what, start, f"dimensions {dims} must be positive")
    if prod(dims) >= 1 << 63:
        raise cursor.file.error(what, start, f"dimensions {dims} overflow 63 bits")
    start, kind = cursor.position, cursor.number(f"type of {what}", "<I")
    if kind not in SCHEME_OF_TYPE:
        named = UNSUPPORTED_TYPES.get(kind)
        reason = f"type {named} is not supported; use another quantization" if named else f"unknown type {kind}"
        raise cursor.file.error(what, start, reason)
    block = scheme(SCHEME_OF_TYPE[kind]).block
    if dims[0] % block:
        raise cursor.file.error(what, start, f"rows of {dims[0]} do not divide into blocks of {block} values")
    start, offset = cursor.position, cursor.number(f"offset of {what}", "<Q")
    if offset % alignment:
        raise cursor.file.error(what, start, f"offset {offset} is not a multiple of the alignment {alignment}")
    return StoredTensor(name, tuple(reversed(dims)), SCHEME_OF_TYPE[kind], cursor.file, offset)


def _placed(file: FileMap, records: list[StoredTensor], data_start: int) -> tuple[StoredTensor, ...]:
    """The tensors with offsets from the start of the file, none beyond its end and no two sharing a byte."""
    placed = [replace(record, offset=data_start + record.offset) for record in records]
    end, last = 0, ""
    for tensor in sorted(placed, key=lambda tensor: tensor.offset):
        stop = tensor.offset + tensor.nbytes
        if stop > file.size:
            reason = f"its {tensor.nbytes} bytes reach beyond the end of the file at {file.size}; download it again"
            raise file.error(f"data of tensor {tensor.name!r}", tensor.offset, reason)
        if tensor.offset < end:
            raise file.error(f"data of tensor {tensor.name!r}", tensor.offset, f"overlaps tensor {last!r}")
        end, last = stop, tensor.name
    return tuple(placed)


def open_gguf(path: Path) -> StoredCheckpoint:
    """Open a GGUF model under Hugging Face names (see `gguf_names`), with all its parts if it is split.

    Raises:
        FormatError: a file is damaged, a part is missing, or parts do not belong together.
    """
    files = _parts(read_gguf(path))
    metadata = files[0].metadata
    architecture = metadata.get("general.architecture", "")
    if not isinstance(architecture, str):
        raise malformed(path, "key 'general.architecture'", f"{architecture!r} is not a string")
    tensors: dict[str, StoredTensor] = {}
    for part in files:
        for tensor in part.tensors:
            name = hugging_face_name(architecture, tensor.name)
            if name in tensors:
                first = tensors[name]
                reason = f"stands for {name!r} like tensor {first.name!r} of {first.file.path.name}"
                raise malformed(part.file.path, f"tensor {tensor.name!r}", reason)
            tensors[name] = tensor
    named = {name: replace(tensor, name=name) for name, tensor in tensors.items()}
    return StoredCheckpoint(path, "gguf", metadata, named)


def _integer(part: GGUFFile, key: str, default: int) -> int:
    value = part.metadata.get(key, default)
    if type(value) is not int:
        raise malformed(part.file.path, f"key {key!r}", f"{value!r} is not an integer")
    return value


def _parts(given: GGUFFile) -> list[GGUFFile]:
    """All parts of a split model in order, or just the given file."""
    count, path = _integer(given, "split.count", 1), given.file.path
    if count in (0, 1):
        return [given]
    match = _SHARD.fullmatch(path.name)
    if not match or int(match["count"]) != count:
        reason = f"says {count} parts, so the file must be called NAME-00001-of-{count:05}.gguf"
        raise malformed(path, "key 'split.count'", reason)
    paths = [path.with_name(f"{match['stem']}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    if missing := [part.name for part in paths if not part.exists()]:
        listed = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise malformed(path, "split model", f"these parts are missing next to it: {listed}")
    files = [given if part == path else read_gguf(part) for part in paths]
    for number, part in enumerate(files):
        if _integer(part, "split.count", 1) != count or _integer(part, "split.no", 0) != number:
            reason = f"does not say part {number} of {count}, as its name does; it was renamed or is of another model"
            raise malformed(part.file.path, "keys 'split.no' and 'split.count'", reason)
    total = sum(len(part.tensors) for part in files)
    expected = _integer(given, "split.tensors.count", total)
    if total != expected:
        raise malformed(path, "key 'split.tensors.count'", f"says {expected} tensors, the parts hold {total}")
    return files
