"""The safetensors reader: every dtype, every lie in a header, and folders with parts missing or left over."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from xinheng.core.errors import FormatError
from xinheng.engine.weights import Checkpoint, open_checkpoint

F32_4 = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


def values(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) / 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "rope_scaling": null}')
    return tmp_path


def refused(path: Path, *words: str) -> str:
    with pytest.raises(FormatError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert str(path.parent) in message
    for word in words:
        assert word in message
    return message


@pytest.mark.parametrize("by_file", [False, True])
def test_round_trip(safetensors: Any, folder: Path, by_file: bool) -> None:
    bf16 = values(3, 4).astype(ml_dtypes.bfloat16)
    tensors = [
        ("model.norm.weight", "F32", values(5)),
        ("lm_head.weight", "BF16", bf16),
        ("scale", "F16", np.array(0.5, np.float16)),
        ("experts", "F32", values(2, 3, 4)),
        ("none", "I8", np.zeros((0, 7), np.int8)),
        ("hollow", "F64", np.zeros((1 << 29, 0, 1 << 29))),
        ("deep", "F32", values(1, 1, 1, 1, 1, 1, 1, 1)),
    ]
    path = folder / "model.safetensors"
    path.write_bytes(safetensors.file(tensors))
    checkpoint: Checkpoint = open_checkpoint(path if by_file else folder)
    assert (checkpoint.path, checkpoint.format) == (path if by_file else folder, "safetensors")
    assert checkpoint.metadata == {"model_type": "llama", "rope_scaling": None}
    assert set(checkpoint.names()) == {name for name, _, _ in tensors}
    assert checkpoint.nbytes == 20 + 24 + 2 + 96 + 4
    for name, _, array in tensors:
        assert checkpoint.shape(name) == array.shape
        np.testing.assert_array_equal(checkpoint.array(name), array.astype(np.float32))
    source = checkpoint.source("lm_head.weight")
    assert (source.shape, source.type.scheme) == ((3, 4), "bfloat16")
    rows = source.parts[0].load()
    assert (rows.shape, rows.flags.owndata, rows.flags.writeable) == ((3, 8), False, False)
    assert rows.tobytes() == bf16.tobytes()
    np.testing.assert_array_equal(source.columns(1, 3).unpack(), values(3, 4)[:, 1:3])


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("F64", np.float64),
        ("F32", np.float32),
        ("F16", np.float16),
        ("BF16", ml_dtypes.bfloat16),
        ("F8_E4M3", ml_dtypes.float8_e4m3fn),
        ("F8_E5M2", ml_dtypes.float8_e5m2),
        ("I64", np.int64),
        ("I32", np.int32),
        ("I16", np.int16),
        ("I8", np.int8),
        ("U64", np.uint64),
        ("U32", np.uint32),
        ("U16", np.uint16),
        ("U8", np.uint8),
        ("BOOL", np.bool_),
    ],
)
def test_every_dtype(safetensors: Any, folder: Path, kind: str, dtype: Any) -> None:
    stored = np.array([[0, 1], [4, 16]]).astype(dtype)
    (folder / "model.safetensors").write_bytes(
        safetensors.file([("odd", "U8", np.zeros(3, np.uint8)), ("t", kind, stored)])
    )
    checkpoint = open_checkpoint(folder)
    for target in (np.float32, dtype):
        out = checkpoint.array("t", target)
        assert out.dtype == target
        np.testing.assert_array_equal(out.astype(np.float64), stored.astype(np.float64))


def test_wide_integers_stay_exact(safetensors: Any, folder: Path) -> None:
    stored = np.array([(1 << 62) + 1], np.int64)
    (folder / "model.safetensors").write_bytes(safetensors.file([("t", "I64", stored)]))
    assert open_checkpoint(folder).array("t", np.int64)[0] == (1 << 62) + 1


def test_it_reads_what_the_public_library_writes(folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a.weight": values(3, 4), "b": values(2).astype(np.float16)}, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    np.testing.assert_array_equal(checkpoint.source("a.weight").unpack(), values(3, 4))
    np.testing.assert_array_equal(checkpoint.array("b"), values(2))


# --- lies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ([], ["exactly the fields"]),
        ({"dtype": "F32", "shape": [4]}, ["exactly the fields"]),
        ({**F32_4, "extra": 1}, ["exactly the fields"]),
        ({**F32_4, "dtype": "F33"}, ["'F33' is not supported"]),
        ({**F32_4, "dtype": "f32"}, ["not supported"]),
        ({**F32_4, "dtype": ["F32"]}, ["not supported"]),
        ({**F32_4, "dtype": "C64"}, ["not supported"]),
        ({**F32_4, "shape": [-4]}, ["non-negative"]),
        ({**F32_4, "shape": [4.0]}, ["non-negative"]),
        ({**F32_4, "shape": [True, 4]}, ["non-negative"]),
        ({**F32_4, "shape": ["4"]}, ["non-negative"]),
        ({**F32_4, "shape": 4}, ["non-negative"]),
        ({**F32_4, "shape": [1 << 63]}, ["non-negative"]),
        ({**F32_4, "shape": [10**400]}, ["non-negative"]),
        ({**F32_4, "shape": [(1 << 63) - 1] * 8}, ["more than 8 dimensions or 2^58 elements"]),
        ({**F32_4, "shape": [(1 << 63) - 1] * 100_000}, ["more than 8 dimensions"]),
        ({**F32_4, "shape": [1] * 40 + [4]}, ["more than 8 dimensions"]),
        ({**F32_4, "shape": [0, 1 << 59], "data_offsets": [0, 0]}, ["2^58 elements"]),
        ({**F32_4, "shape": [5]}, ["takes 20 bytes, data_offsets give 16"]),
        ({**F32_4, "shape": []}, ["takes 4 bytes"]),
        ({**F32_4, "dtype": "F16"}, ["takes 8 bytes"]),
        ({**F32_4, "data_offsets": [0]}, ["begin and an end"]),
        ({**F32_4, "data_offsets": [0, 8, 16]}, ["begin and an end"]),
        ({**F32_4, "data_offsets": [16, 0]}, ["begin and an end"]),
        ({**F32_4, "data_offsets": [-16, 0]}, ["non-negative"]),
        ({**F32_4, "data_offsets": None}, ["non-negative"]),
        ({**F32_4, "data_offsets": [0, 17]}, ["beyond the 16 bytes of data"]),
        ({**F32_4, "data_offsets": [1 << 62, (1 << 62) + 16]}, ["beyond"]),
    ],
)
def test_lying_entries(safetensors: Any, folder: Path, entry: Any, words: list[str]) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(safetensors.raw({"t": entry}, bytes(16)))
    assert "tensor 't'" in refused(path, "model.safetensors", *words)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"{", ["not JSON"]),
        (b'{"t": }', ["not JSON", "byte 14"]),
        (b"{}x", ["not JSON"]),
        (b' {"t": 1}', ["does not start with '{'"]),
        (b'{"t": "\xff"}', ["UTF-8", "byte 15"]),
        (b'{"t": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ["not acceptable JSON"]),
        (b'{"t": ' + b"9" * 5000 + b"}", ["not acceptable JSON"]),
        (b'{"t": {"dtype": "F32"}, "t": {}}', ["'t' is there twice"]),
        (b'{"t": {"dtype": "F32", "dtype": "F16"}}', ["'dtype' is there twice"]),
        (b'{"__metadata__": {"a": 1}}', ["__metadata__"]),
        (b'{"__metadata__": []}', ["__metadata__"]),
        (b'{"t": null}', ["exactly the fields"]),
    ],
)
def test_bad_headers(safetensors: Any, folder: Path, header: bytes, words: list[str]) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(safetensors.raw(header))
    # The folder is opened: of a lone file the first byte of the header is what tells its format.
    with pytest.raises(FormatError) as caught:
        open_checkpoint(folder)
    for word in ("model.safetensors", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (3, ["not JSON"]),
        (1 << 20, ["byte 0", "1048576 bytes do not fit in a file of"]),
        (1 << 40, ["byte 0", "do not fit"]),
        ((1 << 64) - 1, ["byte 0", "do not fit"]),
    ],
)
def test_lying_header_lengths(safetensors: Any, folder: Path, length: int, words: list[str]) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(safetensors.raw({"t": F32_4}, bytes(16), length=length))
    tracemalloc.start()
    try:
        refused(path, *words)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_header_of_more_than_100_megabytes_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001) + b"{")
        file.truncate(100_000_200)  # a hole: it takes no space
    refused(path, "100000001 bytes are more than the 100000000 allowed", "byte 0")


@pytest.mark.parametrize(
    ("offsets", "size", "words"),
    [
        ([(0, 16), (16, 32)], 36, ["the file has"]),
        ([(0, 16), (20, 36)], 36, ["gap"]),
        ([(4, 20), (20, 36)], 36, ["gap"]),
        ([(0, 16), (12, 28)], 28, ["overlaps"]),
        ([(0, 16), (0, 16)], 16, ["overlaps"]),
        ([(0, 16), (0, 16)], 32, ["overlaps"]),
    ],
)
def test_gaps_and_overlaps(
    safetensors: Any, folder: Path, offsets: list[tuple[int, int]], size: int, words: list[str]
) -> None:
    header = {f"t{i}": {**F32_4, "data_offsets": list(pair)} for i, pair in enumerate(offsets)}
    path = folder / "model.safetensors"
    path.write_bytes(safetensors.raw(header, bytes(size)))
    refused(path, *words)


def test_order_of_the_header_is_free_and_padding_is_allowed(safetensors: Any, folder: Path) -> None:
    header = json.dumps({"b": {**F32_4, "data_offsets": [16, 32]}, "a": F32_4}).encode() + b"   "
    (folder / "model.safetensors").write_bytes(safetensors.raw(header, values(8).tobytes()))
    np.testing.assert_array_equal(open_checkpoint(folder).array("b"), values(8)[4:])


def test_damage_is_always_a_format_error(safetensors: Any, folder: Path) -> None:
    raw = safetensors.file([("a.weight", "F32", values(2, 3)), ("b", "BF16", np.zeros(5, np.uint16))])
    path, rng = folder / "model.safetensors", random.Random(4)
    end_of_header = 8 + struct.unpack("<Q", raw[:8])[0]

    def opens(damaged: bytes) -> bool:
        path.unlink(missing_ok=True)
        path.write_bytes(damaged)
        try:
            checkpoint = open_checkpoint(folder)
        except FormatError as error:
            assert len(str(error)) < 4096
            return False
        for name in checkpoint.names():
            assert checkpoint.array(name).shape == checkpoint.shape(name)
        return True

    assert opens(raw)
    assert not any(opens(raw[:size]) for size in range(len(raw)))
    opened = 0
    for _ in range(2000):
        damaged = bytearray(raw)
        for _ in range(rng.choice((1, 1, 2))):
            damaged[rng.randrange(end_of_header)] = rng.choice(
                (rng.randrange(256), rng.choice(b'0123456789"{}[],:-e.'))
            )
        opened += opens(bytes(damaged))
    assert 0 < opened < 2000


# --- folders ------------------------------------------------------------------------------------------------------

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.fixture
def sharded(safetensors: Any, folder: Path) -> Path:
    (folder / SHARDS[0]).write_bytes(safetensors.file([("a", "F32", values(2, 2)), ("b", "F32", values(3))]))
    (folder / SHARDS[1]).write_bytes(safetensors.file([("c", "F32", values(4))]))
    write_index(folder, {"c": SHARDS[1], "a": SHARDS[0], "b": SHARDS[0]})
    return folder


def write_index(folder: Path, table: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))


@pytest.mark.parametrize("given", ["", *SHARDS])
def test_parts_open_together(sharded: Path, given: str) -> None:
    checkpoint = open_checkpoint(sharded / given)
    assert checkpoint.names() == ("c", "a", "b")
    assert checkpoint.nbytes == 36 + 8
    np.testing.assert_array_equal(checkpoint.source("a").unpack(), values(2, 2))
    np.testing.assert_array_equal(checkpoint.array("c"), values(4))


def test_missing_parts_are_named(sharded: Path) -> None:
    for shard in SHARDS:
        (sharded / shard).unlink()
    refused(sharded / "model.safetensors.index.json", "neither")
    with pytest.raises(FormatError, match=f"missing: {SHARDS[0]}, {SHARDS[1]}"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("name", ["model-00003-of-00003.safetensors", "model.safetensors"])
def test_surplus_parts_are_named(sharded: Path, safetensors: Any, name: str) -> None:
    (sharded / name).write_bytes(safetensors.file([]))
    with pytest.raises(FormatError, match=f"not in the index: {name}"):
        open_checkpoint(sharded)


def test_other_files_beside_the_parts_are_no_part(sharded: Path, safetensors: Any) -> None:
    (sharded / "consolidated.safetensors").write_bytes(safetensors.file([("x", "F32", values(1))]))
    assert open_checkpoint(sharded).names() == ("c", "a", "b")
    assert open_checkpoint(sharded / "consolidated.safetensors").names() == ("x",)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"a": SHARDS[0], "c": SHARDS[1]}, "also holds b"),
        ({"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1], "d": SHARDS[1]}, "lacks d"),
        ({"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[1]}, "also holds b"),
        ({"a": "../x.safetensors"}, "not a file name of this folder"),
        ({"a": "/etc/passwd"}, "not a file name of this folder"),
        ({"a": 1}, "weight_map"),
        ({}, "weight_map"),
        ([], "weight_map"),
    ],
)
def test_a_lying_index(sharded: Path, table: Any, words: str) -> None:
    write_index(sharded, table)
    with pytest.raises(FormatError, match=words):
        open_checkpoint(sharded)


def test_parts_without_an_index_are_refused(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(FormatError, match=f"index.json is missing, but there are parts: {SHARDS[0]}, {SHARDS[1]}"):
        open_checkpoint(sharded)
    refused(sharded / SHARDS[0], "is a part of a model")


def test_what_is_no_checkpoint(safetensors: Any, tmp_path: Path) -> None:
    refused(tmp_path / "absent", "no such file or folder")
    with pytest.raises(FormatError, match=r"has no config.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FormatError, match=r"no \*.safetensors"):
        open_checkpoint(tmp_path)
    for name in ("x", "y"):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors.file([("t", "F32", values(1))]))
    with pytest.raises(FormatError, match=r"several candidates: x.safetensors, y.safetensors"):
        open_checkpoint(tmp_path)
    assert open_checkpoint(tmp_path / "y.safetensors").names() == ("t",)
    (tmp_path / "y.safetensors").unlink()
    assert open_checkpoint(tmp_path).names() == ("t",)
    (tmp_path / "config.json").unlink()
    refused(tmp_path / "x.safetensors", "has no config.json")


def test_a_huge_config_is_refused(safetensors: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.safetensors").write_bytes(safetensors.file([]))
    monkeypatch.setattr("xinheng.engine.weights.safetensors.MAX_JSON", 20)
    with pytest.raises(FormatError, match=r"config\.json.*too many"):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}', "\udcff"])
def test_bad_config(safetensors: Any, folder: Path, text: str) -> None:
    (folder / "model.safetensors").write_bytes(safetensors.file([]))
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FormatError, match=r"config\.json"):
        open_checkpoint(folder)
