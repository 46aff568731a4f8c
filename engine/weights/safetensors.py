"""Safetensors files and folders, with every claim of the header checked before a byte of data is trusted.

Source of the format: the README of huggingface/safetensors: u64 header length, a JSON object of
name -> {dtype, shape, data_offsets}, then the data, which the tensors must cover without gap or overlap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from xinheng.core.schemes import scheme

from .file_map import FileMap, malformed
from .stored import StoredCheckpoint, StoredTensor

MAX_HEADER = 100_000_000  # the limit of the reference implementation
MAX_JSON = 100_000_000
MAX_RANK = 8
MAX_ELEMENTS = 1 << 58  # what numpy can index in 8-byte elements, also where another dimension is 0
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

SCHEME_OF_DTYPE: Mapping[str, str] = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "uint8",
}  # fmt: skip

_SHARD = re.compile(r".+-[0-9]{5}-of-[0-9]{5}\.safetensors", re.ASCII)


class _JSONError(ValueError):
    """JSON that Python accepts and this project does not."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _JSONError(f"the key {key[:200]!r} is there twice")
        result[key] = value
    return result


def _json_object(path: Path, what: str, text: bytes, offset: int) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise malformed(path, what, "is not UTF-8", offset + error.start) from None
    except json.JSONDecodeError as error:
        raise malformed(path, what, f"is not JSON ({error.msg})", offset + error.pos) from None
    except (ValueError, RecursionError) as error:
        raise malformed(path, what, f"is not acceptable JSON ({error})", offset) from None
    if not isinstance(value, dict):
        raise malformed(path, what, "is not a JSON object", offset)
    return value


def _json_file(path: Path) -> dict[str, Any]:
    file = FileMap.open(path)
    if file.size > MAX_JSON:
        raise malformed(path, "file", f"{file.size} bytes are too many for a JSON file here")
    return _json_object(path, "file", file.data[:], 0)


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file by name, in the order of their data.

    Raises:
        FormatError: the header is damaged or does not describe exactly the bytes of the file.
    """
    file = FileMap.open(path)
    length = int.from_bytes(file.data[:8], "little")
    if file.size < 8 or length > file.size - 8:
        raise file.error("header length", 0, f"{length} bytes do not fit in a file of {file.size}; download it again")
    if length > MAX_HEADER:
        raise file.error("header length", 0, f"{length} bytes are more than the {MAX_HEADER} allowed")
    text = file.data[8 : 8 + length]
    if text[:1] != b"{":
        raise file.error("header", 8, "does not start with '{'")
    header = _json_object(path, "header", text, 8)
    _check_notes(file, header.pop("__metadata__", {}))
    tensors = [_tensor(file, name, entry, 8 + length) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    end = 8 + length
    for tensor in tensors:
        if tensor.offset != end:
            kind = "a gap before it" if tensor.offset > end else "it overlaps the tensor before it"
            raise file.error(f"data of tensor {tensor.name!r}", tensor.offset, f"{kind}; expected it at byte {end}")
        end += tensor.nbytes
    if end != file.size:
        raise file.error("data", end, f"the last tensor ends here, the file has {file.size} bytes; download it again")
    return {tensor.name: tensor for tensor in tensors}


def _check_notes(file: FileMap, notes: Any) -> None:
    if not isinstance(notes, dict) or not all(isinstance(value, str) for value in notes.values()):
        raise file.error("header field '__metadata__'", 8, "is not an object of strings")


def _sizes(file: FileMap, what: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int and 0 <= size < 1 << 63 for size in value):
        raise file.error(what, 8, f"{str(value)[:80]} is not a list of non-negative 63-bit integers")
    return tuple(value)


def _tensor(file: FileMap, name: str, entry: Any, data_start: int) -> StoredTensor:
    what = f"tensor {name[:200]!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise file.error(what, 8, "needs exactly the fields dtype, shape and data_offsets")
    kind = entry["dtype"]
    if not isinstance(kind, str) or kind not in SCHEME_OF_DTYPE:
        known = ", ".join(SCHEME_OF_DTYPE)
        raise file.error(f"dtype of {what}", 8, f"{str(kind)[:80]!r} is not supported; supported: {known}")
    shape = _sizes(file, f"shape of {what}", entry["shape"])
    offsets = _sizes(file, f"data_offsets of {what}", entry["data_offsets"])
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise file.error(f"data_offsets of {what}", 8, f"{str(list(offsets))[:80]} is not a begin and an end")
    if data_start + offsets[1] > file.size:
        reason = f"end {offsets[1]} lies beyond the {file.size - data_start} bytes of data; download it again"
        raise file.error(f"data_offsets of {what}", 8, reason)
    if len(shape) > MAX_RANK or prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        reason = f"{str(list(shape))[:80]} has more than {MAX_RANK} dimensions or 2^58 elements"
        raise file.error(f"shape of {what}", 8, reason)
    stored = SCHEME_OF_DTYPE[kind]
    size = prod(shape) * scheme(stored).block_bytes
    if size != offsets[1] - offsets[0]:
        reason = f"{kind} {list(shape)} takes {size} bytes, data_offsets give {offsets[1] - offsets[0]}"
        raise file.error(what, 8, reason)
    return StoredTensor(name, shape, stored, file, data_start + offsets[0])


def open_safetensors(path: Path) -> StoredCheckpoint:
    """Open the model that `path` is, or is a part of; config.json lies next to it.

    Raises:
        FormatError: a file is damaged or missing.
    """
    folder = path.parent
    index = folder / INDEX
    if index.exists() and path.name in _shards_of(index, _weight_map(index)):
        return open_safetensors_folder(folder)
    if _SHARD.fullmatch(path.name):
        raise malformed(path, "file", f"is a part of a model, but {INDEX} next to it is missing or does not list it")
    return StoredCheckpoint(path, "safetensors", _config(folder), read_safetensors(path))


def open_safetensors_folder(folder: Path) -> StoredCheckpoint:
    """Open a folder with config.json and one model.safetensors, one other *.safetensors, or an index and its parts.

    Raises:
        FormatError: a file is damaged, missing or too many; missing and surplus parts are named before anything loads.
    """
    config = _config(folder)
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if (folder / INDEX).exists():
        return StoredCheckpoint(folder, "safetensors", config, _read_shards(folder, found))
    if shards := [name for name in found if _SHARD.fullmatch(name)]:
        raise malformed(folder, "folder", f"{INDEX} is missing, but there are parts: {_listed(shards)}")
    if SINGLE in found:
        found = [SINGLE]
    if len(found) != 1:
        what = f"several candidates: {_listed(found)}; give one of them" if found else "no *.safetensors"
        raise malformed(folder, "folder", f"has no {SINGLE} and no {INDEX}, and {what}")
    return StoredCheckpoint(folder, "safetensors", config, read_safetensors(folder / found[0]))


def _config(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        raise malformed(folder, "folder", f"has no {CONFIG} next to the weights (GGUF: give the .gguf file)")
    return _json_file(folder / CONFIG)


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _weight_map(index: Path) -> dict[str, str]:
    """The index's table of tensor name -> file name."""
    table = _json_file(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(value, str) for value in table.values()):
        raise malformed(index, "field 'weight_map'", "is not an object of tensor name -> file name")
    return table


def _shards_of(index: Path, table: Mapping[str, str]) -> list[str]:
    shards = sorted(set(table.values()))
    if bad := [name for name in shards if Path(name).name != name or not name.endswith(".safetensors")]:
        raise malformed(index, "field 'weight_map'", f"not a file name of this folder: {_listed(map(repr, bad))}")
    return shards


def _read_shards(folder: Path, found: list[str]) -> dict[str, StoredTensor]:
    index = folder / INDEX
    table = _weight_map(index)
    shards = _shards_of(index, table)
    if missing := set(shards) - set(found):
        raise malformed(index, "folder", f"these parts are missing: {_listed(missing)}; download them")
    surplus = [name for name in set(found) - set(shards) if name == SINGLE or _SHARD.fullmatch(name)]
    if surplus:
        raise malformed(index, "folder", f"these parts are not in the index: {_listed(surplus)}; remove them")
    tensors: dict[str, StoredTensor] = {}
    for name in shards:
        part = read_safetensors(folder / name)
        listed = {tensor for tensor, shard in table.items() if shard == name}
        if listed != part.keys():
            lacking, extra = listed - part.keys(), part.keys() - listed
            reason = f"lacks {_listed(lacking)}" if lacking else f"also holds {_listed(extra)}"
            raise malformed(folder / name, "file", f"does not agree with {INDEX}: it {reason}")
        tensors |= part
    return {name: tensors[name] for name in table}
