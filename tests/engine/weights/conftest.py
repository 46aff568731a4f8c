"""Small writers of GGUF and safetensors files, which write whatever they are told, lies included."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


class GGUFWriter:
    """Bytes of GGUF pieces and files."""

    codes = CODES

    @staticmethod
    def string(text: str | bytes) -> bytes:
        raw = text.encode() if isinstance(text, str) else text
        return struct.pack("<Q", len(raw)) + raw

    @classmethod
    def value(cls, kind: int, value: Any) -> bytes:
        """The value alone; an array is (element kind, list)."""
        if kind == STRING:
            return cls.string(value)
        if kind == ARRAY:
            element, items = value
            return struct.pack("<IQ", element, len(items)) + b"".join(cls.value(element, item) for item in items)
        return struct.pack("<" + CODES[kind], value)

    @classmethod
    def pair(cls, key: str | bytes, kind: int, value: Any) -> bytes:
        return cls.string(key) + struct.pack("<I", kind) + cls.value(kind, value)

    @classmethod
    def record(cls, name: str | bytes, dims: Sequence[int], kind: int, offset: int) -> bytes:
        """A tensor record; `dims` fastest first, as in the file."""
        shape = b"".join(struct.pack("<q", dim) for dim in dims)
        return cls.string(name) + struct.pack("<I", len(dims)) + shape + struct.pack("<IQ", kind, offset)

    @staticmethod
    def assemble(
        pairs: Sequence[bytes],
        records: Sequence[bytes],
        data: bytes = b"",
        *,
        version: int = 3,
        alignment: int = 32,
        counts: tuple[int, int] | None = None,
    ) -> bytes:
        tensors, keys = counts or (len(records), len(pairs))
        head = b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(pairs) + b"".join(records)
        return head + bytes(-len(head) % alignment) + data

    @classmethod
    def file(
        cls,
        pairs: Sequence[tuple[str, int, Any]],
        tensors: Sequence[tuple[str, Sequence[int], int, bytes]],
        *,
        version: int = 3,
        alignment: int = 32,
    ) -> bytes:
        """A valid file; a tensor is (name, shape slowest first, type, bytes)."""
        records, data = [], b""
        for name, shape, kind, raw in tensors:
            records.append(cls.record(name, list(reversed(shape)), kind, len(data)))
            data += raw + bytes(-len(raw) % alignment)
        encoded = [cls.pair(*pair) for pair in pairs]
        return cls.assemble(encoded, records, data, version=version, alignment=alignment)


class SafetensorsWriter:
    """Bytes of safetensors files."""

    @staticmethod
    def raw(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
        """Any header: an object to be written as JSON, or bytes."""
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text + data

    @classmethod
    def file(cls, tensors: Sequence[tuple[str, str, np.ndarray[Any, Any]]]) -> bytes:
        """A valid file; a tensor is (name, dtype, array of its bytes' type)."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        data = b""
        for name, kind, array in tensors:
            end = len(data) + array.nbytes
            header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), end]}
            data += array.tobytes()
        return cls.raw(header, data)


@pytest.fixture(scope="session")
def gguf() -> type[GGUFWriter]:
    return GGUFWriter


@pytest.fixture(scope="session")
def safetensors() -> type[SafetensorsWriter]:
    return SafetensorsWriter
