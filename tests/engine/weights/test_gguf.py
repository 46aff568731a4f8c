"""The GGUF reader: round trips, and one typed refusal for every way a file can lie."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xinheng.core.errors import FormatError, ModelError
from xinheng.core.schemes import scheme
from xinheng.engine.weights import Checkpoint, open_checkpoint

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
TYPE_Q4_0, TYPE_F32, TYPE_F16, TYPE_BF16 = 2, 0, 1, 30

PAIRS = [
    ("general.architecture", STRING, "llama"),
    ("u8", U8, 255),
    ("i8", I8, -5),
    ("u16", U16, 65535),
    ("i16", I16, -300),
    ("u32", U32, 4_000_000_000),
    ("i32", I32, -70_000),
    ("f32", F32, 0.5),
    ("yes", BOOL, 1),
    ("text", STRING, "芯衡"),
    ("tokens", ARRAY, (STRING, ["<s>", "", "▁你好"])),
    ("scores", ARRAY, (F32, [0.25, -1.0])),
    ("flags", ARRAY, (BOOL, [0, 1])),
    ("none", ARRAY, (I32, [])),
    ("nested", ARRAY, (ARRAY, [(I32, [1, 2]), (STRING, ["a"]), (ARRAY, [(U8, [7])])])),
    ("u64", U64, 1 << 63),
    ("i64", I64, -(1 << 63)),
    ("f64", F64, 1e300),
]
METADATA = {
    "general.architecture": "llama",
    "u8": 255,
    "i8": -5,
    "u16": 65535,
    "i16": -300,
    "u32": 4_000_000_000,
    "i32": -70_000,
    "f32": 0.5,
    "yes": True,
    "text": "芯衡",
    "tokens": ["<s>", "", "▁你好"],
    "scores": [0.25, -1.0],
    "flags": [False, True],
    "none": [],
    "nested": [[1, 2], ["a"], [[7]]],
    "u64": 1 << 63,
    "i64": -(1 << 63),
    "f64": 1e300,
}


def values(*shape: int) -> np.ndarray[Any, Any]:
    return (np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) - 11) / 8


def packed(name: str, array: np.ndarray[Any, Any]) -> bytes:
    pack = scheme(name).pack
    assert pack is not None
    return pack(array).tobytes()


def small(gguf: Any, **options: Any) -> bytes:
    tensors = [
        ("token_embd.weight", (3, 64), TYPE_Q4_0, packed("q4_0", values(3, 64))),
        ("blk.0.attn_norm.weight", (5,), TYPE_F32, values(5).tobytes()),
        ("blk.0.attn_q.weight", (2, 6), TYPE_F16, packed("float16", values(2, 6))),
        ("blk.0.ffn_up_exps.weight", (2, 3, 4), TYPE_BF16, packed("bfloat16", values(2, 3, 4))),
    ]
    raw: bytes = gguf.file(PAIRS, tensors, **options)
    return raw


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(raw: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(raw)
        return path

    return write


def refused(path: Path, *words: str) -> str:
    with pytest.raises(FormatError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert str(path.name) in message
    for word in words:
        assert word in message
    return message


@pytest.mark.parametrize("version", [2, 3])
def test_round_trip(gguf: Any, written: Any, version: int) -> None:
    path = written(small(gguf, version=version))
    checkpoint: Checkpoint = open_checkpoint(str(path))
    assert (checkpoint.path, checkpoint.format) == (path, "gguf")
    assert checkpoint.metadata == METADATA
    assert {key: type(value) for key, value in checkpoint.metadata.items()} == {
        key: type(value) for key, value in METADATA.items()
    }
    assert checkpoint.names() == (
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "blk.0.ffn_up_exps.weight",
    )
    assert "model.embed_tokens.weight" in checkpoint
    assert "lm_head.weight" not in checkpoint
    assert checkpoint.nbytes == 3 * 36 + 20 + 24 + 48
    np.testing.assert_array_equal(checkpoint.array("model.layers.0.input_layernorm.weight"), values(5))
    np.testing.assert_array_equal(checkpoint.array("blk.0.ffn_up_exps.weight"), values(2, 3, 4))
    half = checkpoint.array("model.layers.0.self_attn.q_proj.weight", np.float16)
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, values(2, 6))


def test_a_matrix_is_a_lazy_view_of_its_packed_rows(gguf: Any, written: Any) -> None:
    checkpoint = open_checkpoint(written(small(gguf)))
    source = checkpoint.source("model.embed_tokens.weight")
    assert (source.name, source.shape, str(source.type)) == (
        "model.embed_tokens.weight",
        (3, 64),
        "weight<q4_0>[3, 64]",
    )
    rows = source.parts[0].load()
    assert (rows.shape, rows.flags.writeable, rows.flags.owndata) == ((3, 36), False, False)
    assert rows.dtype == np.uint8
    assert rows.tobytes() == packed("q4_0", values(3, 64))
    again = source.parts[0].load()
    assert again.__array_interface__["data"] == rows.__array_interface__["data"]
    full = checkpoint.array("model.embed_tokens.weight")
    np.testing.assert_array_equal(source.unpack(), full)
    np.testing.assert_array_equal(source.rows(1, 3).columns(32, 64).unpack(), full[1:, 32:])
    np.testing.assert_array_equal(checkpoint.array("model.embed_tokens.weight", np.float16), full.astype(np.float16))


def test_views_outlive_the_checkpoint_and_its_file(gguf: Any, written: Any) -> None:
    path = written(small(gguf))
    load = open_checkpoint(path).source("model.embed_tokens.weight").parts[0].load
    path.unlink()
    assert load().tobytes() == packed("q4_0", values(3, 64))


def test_wrong_names_and_ranks_are_model_errors(gguf: Any, written: Any) -> None:
    checkpoint = open_checkpoint(written(small(gguf)))
    with pytest.raises(ModelError, match=r"no tensor 'model.embed_token.weight'.*did you mean 'model.embed_tokens.we"):
        checkpoint.array("model.embed_token.weight")
    with pytest.raises(ModelError, match=r"shape \[5\]; a weight is a matrix; use array"):
        checkpoint.source("model.layers.0.input_layernorm.weight")
    with pytest.raises(ModelError, match="no tensor"):
        checkpoint.shape("x")


def test_the_alignment_of_the_file_is_used(gguf: Any, written: Any) -> None:
    pairs = [("general.alignment", U32, 256)]
    tensors = [("a", (4,), TYPE_F32, values(4).tobytes()), ("b", (3,), TYPE_F32, values(3).tobytes())]
    checkpoint = open_checkpoint(written(gguf.file(pairs, tensors, alignment=256)))
    np.testing.assert_array_equal(checkpoint.array("b"), values(3))


def test_a_file_without_tensors_opens(gguf: Any, written: Any) -> None:
    assert open_checkpoint(written(gguf.file(PAIRS, []))).names() == ()


def test_a_big_vocabulary_is_fast(gguf: Any, written: Any) -> None:
    tokens = [f"token {i} 你" for i in range(262_144)]
    path = written(gguf.file([("tokens", ARRAY, (STRING, tokens)), ("types", ARRAY, (I32, [1] * 262_144))], []))
    start = time.perf_counter()
    checkpoint = open_checkpoint(path)
    assert time.perf_counter() - start < 1.0
    assert checkpoint.metadata["tokens"] == tokens


# --- lies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", ["empty"]),
        (b"GGUF", ["version", "byte 4"]),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), ["version 1", "byte 4"]),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), ["big-endian"]),
        (b"GGUF" + struct.pack("<I", 4) + bytes(64), ["version 4"]),
        (b"GGML" + bytes(64), ["neither"]),
    ],
)
def test_not_a_file_for_us(written: Any, raw: bytes, words: list[str]) -> None:
    refused(written(raw), *words)


@pytest.mark.parametrize("count", [1 << 60, (1 << 64) - 1, 1000])
@pytest.mark.parametrize("which", [0, 1])
def test_counts_beyond_the_file(gguf: Any, written: Any, count: int, which: int) -> None:
    counts = (count, 0) if which == 0 else (0, count)
    raw = gguf.assemble([], [], bytes(100), counts=counts)
    refused(written(raw), ("tensor count at byte 8", "key count at byte 16")[which], str(count))


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (struct.pack("<IQ", STRING, 1 << 60), ["length of key 'k'", str(1 << 60), "byte 37"]),
        (struct.pack("<IQ", STRING, (1 << 64) - 1), ["length of key 'k'"]),
        (struct.pack("<IIQ", ARRAY, U8, 1 << 60), ["length of key 'k'", str(1 << 60), "byte 41"]),
        (struct.pack("<IIQ", ARRAY, F64, 10), ["length of key 'k'"]),
        (struct.pack("<IIQ", ARRAY, STRING, 1 << 60), ["length of key 'k'"]),
        (struct.pack("<IIQQ", ARRAY, STRING, 1, 1 << 62), ["element 0 of key 'k'", "beyond the end"]),
        (struct.pack("<IIQ", ARRAY, STRING, 3) + struct.pack("<Q", 30) + bytes(23), ["element 0"]),
        (struct.pack("<IIQ", ARRAY, STRING, 2) + struct.pack("<Q", 9) + bytes(14), ["element 1", "beyond"]),
        (struct.pack("<IIQQB", ARRAY, STRING, 1, 1, 0xFF), ["element 0", "UTF-8", "byte 57"]),
        (struct.pack("<IQB", STRING, 1, 0xFF), ["UTF-8", "byte 45"]),
        (struct.pack("<IB", BOOL, 2), ["a bool is 0 or 1, not 2"]),
        (struct.pack("<IIQBB", ARRAY, BOOL, 2, 1, 9), ["a bool is 0 or 1, not 9", "byte 50"]),
        (struct.pack("<I", 13) + bytes(8), ["unknown value type 13", "byte 33"]),
        (struct.pack("<IIQ", ARRAY, 77, 1) + bytes(8), ["unknown element type 77", "byte 37"]),
        (struct.pack("<IIQ", ARRAY, ARRAY, 1 << 60), ["length of key 'k'"]),
        (struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 50 + bytes(60), ["nested more than 4 deep"]),
        (struct.pack("<I", U64) + bytes(7), ["needs 8 bytes", "7 left"]),
    ],
)
def test_bad_values(gguf: Any, written: Any, tail: bytes, words: list[str]) -> None:
    refused(written(gguf.assemble([gguf.string("k") + tail], [], alignment=1)), *words)


def test_bad_keys(gguf: Any, written: Any) -> None:
    one = gguf.pair("twin", U8, 1)
    refused(written(gguf.assemble([one, one], [])), "key 'twin'", "twice", "byte 41")
    refused(written(gguf.assemble([gguf.pair(b"\xc3\x28", U8, 1)], [])), "key 0", "UTF-8")
    refused(written(gguf.assemble([gguf.pair("k" * 65536, U8, 1)], [])), "65536 bytes", "65535 allowed")


def test_too_many_metadata_values(gguf: Any, written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xinheng.engine.weights.gguf.MAX_ELEMENTS", 100)
    half = ("a", ARRAY, (U8, [0] * 60))
    assert open_checkpoint(written(gguf.file([half], []))).metadata["a"] == [0] * 60
    refused(written(gguf.file([half, ("b", ARRAY, (ARRAY, [(U8, [0] * 60)]))], [])), "more than 100 metadata values")


@pytest.mark.parametrize("alignment", [(U32, 0), (U32, 24), (I32, -32), (F32, 32.0), (STRING, "32"), (BOOL, 1)])
def test_bad_alignment(gguf: Any, written: Any, alignment: tuple[int, Any]) -> None:
    raw = gguf.file([("general.alignment", *alignment)], [("a", (4,), TYPE_F32, bytes(16))])
    refused(written(raw), "general.alignment", "power of two")


@pytest.mark.parametrize(
    ("dims", "kind", "offset", "words"),
    [
        ([], TYPE_F32, 0, ["rank 0", "byte 33"]),
        ([1] * 5, TYPE_F32, 0, ["rank 5"]),
        ([0], TYPE_F32, 0, ["positive"]),
        ([4, 0], TYPE_F32, 0, ["positive"]),
        ([-4], TYPE_F32, 0, ["positive"]),
        ([1 << 62, 1 << 62], TYPE_F32, 0, ["overflow"]),
        ([1 << 32, 1 << 31], TYPE_F32, 0, ["overflow"]),
        ([1 << 40], TYPE_F32, 0, ["beyond the end"]),
        ([33], TYPE_Q4_0, 0, ["33", "blocks of 32"]),
        ([576], 12, 0, ["576", "blocks of 256"]),
        ([4], 99, 0, ["unknown type 99"]),
        ([256], 16, 0, ["IQ2_XXS", "not supported"]),
        ([4], 4, 0, ["unknown type 4"]),
        ([4], TYPE_F32, 16, ["multiple of the alignment 32"]),
        ([4], TYPE_F32, 64, ["beyond the end"]),
        ([4], TYPE_F32, (1 << 64) - 32, ["beyond the end"]),
        ([17], TYPE_F32, 0, ["beyond the end"]),
    ],
)
def test_bad_tensors(gguf: Any, written: Any, dims: list[int], kind: int, offset: int, words: list[str]) -> None:
    raw = gguf.assemble([], [gguf.record("t", dims, kind, offset)], bytes(64))
    refused(written(raw), "tensor 't'", *words)


def test_tensors_may_not_collide(gguf: Any, written: Any) -> None:
    one, other = gguf.record("t", [8], TYPE_F32, 0), gguf.record("u", [8], TYPE_F32, 32)
    assert open_checkpoint(written(gguf.assemble([], [other, one], bytes(64)))).names() == ("u", "t")
    refused(written(gguf.assemble([], [one, one], bytes(64))), "tensor 't'", "twice")
    long = gguf.record("t", [9], TYPE_F32, 0)
    refused(written(gguf.assemble([], [long, other], bytes(64))), "'u'", "overlaps tensor 't'")
    names = ["output_norm.weight", "model.norm.weight"]
    pair = gguf.pair("general.architecture", STRING, "llama")
    records = [gguf.record(name, [8], TYPE_F32, 32 * i) for i, name in enumerate(names)]
    refused(written(gguf.assemble([pair], records, bytes(64))), *names)


def test_the_architecture_is_a_string(gguf: Any, written: Any) -> None:
    refused(written(gguf.file([("general.architecture", U32, 3)], [])), "general.architecture", "not a string")


# --- split models -------------------------------------------------------------------------------------------------


def part(gguf: Any, number: int, count: int, total: int | None = 3, own: int = 1) -> bytes:
    pairs: list[tuple[str, int, Any]] = [("split.no", U16, number), ("split.count", U16, count)]
    if total is not None:
        pairs.append(("split.tensors.count", I32, total))
    pairs += [("general.architecture", STRING, "llama"), ("x", U8, 1)] if number == 0 else []
    tensors = [(f"blk.{number}.attn_norm.weight", (3,), TYPE_F32, (values(3) + number).tobytes())] * own
    raw: bytes = gguf.file(pairs, tensors)
    return raw


def name_of(number: int, count: int = 3) -> str:
    return f"m-{number + 1:05}-of-{count:05}.gguf"


@pytest.mark.parametrize("given", [0, 2])
def test_a_split_model_opens_by_any_part(gguf: Any, written: Any, given: int) -> None:
    paths = [written(part(gguf, i, 3), name_of(i)) for i in range(3)]
    checkpoint = open_checkpoint(paths[given])
    assert checkpoint.metadata["x"] == 1
    assert checkpoint.path == paths[given]
    for i in range(3):
        np.testing.assert_array_equal(checkpoint.array(f"model.layers.{i}.input_layernorm.weight"), values(3) + i)


def test_missing_parts_are_named(gguf: Any, written: Any) -> None:
    path = written(part(gguf, 1, 3), name_of(1))
    message = refused(path, "missing", name_of(0), name_of(2))
    assert f"next to it: {name_of(0)}, {name_of(2)}" in message


def test_parts_must_belong_together(gguf: Any, written: Any) -> None:
    first = written(part(gguf, 0, 2), name_of(0, 2))
    refused(written(part(gguf, 0, 2), "renamed.gguf"), "NAME-00001-of-00002.gguf")
    refused(written(part(gguf, 0, 2), name_of(0, 3)), "says 2 parts")
    second = written(part(gguf, 0, 2), name_of(1, 2))
    with pytest.raises(FormatError, match=r"m-00002-of-00002.*does not say part 1 of 2"):
        open_checkpoint(first)
    second.write_bytes(part(gguf, 1, 2))
    refused(first, "says 3 tensors, the parts hold 2")
    first.write_bytes(part(gguf, 0, 2, total=2))
    assert len(open_checkpoint(first).names()) == 2
    second.write_bytes(part(gguf, 0, 2).replace(struct.pack("<IH", U16, 0), struct.pack("<IH", U16, 1), 1))
    with pytest.raises(FormatError, match=r"m-00002-of-00002.*stands for 'model.layers.0.input_layernorm.weight'"):
        open_checkpoint(first)


def test_a_part_that_is_no_gguf_file_is_named(gguf: Any, written: Any) -> None:
    first = written(part(gguf, 0, 2), name_of(0, 2))
    written(b"<html>" + bytes(100), name_of(1, 2))
    with pytest.raises(FormatError, match=r"m-00002-of-00002.gguf: magic at byte 0: b'<htm' instead of b'GGUF'"):
        open_checkpoint(first)


def test_split_keys_are_integers(gguf: Any, written: Any) -> None:
    refused(written(gguf.file([("split.count", STRING, "2")], [])), "split.count", "not an integer")
