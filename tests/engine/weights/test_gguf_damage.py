"""A damaged GGUF file either opens or is refused with a `FormatError`, whatever was damaged, in little memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xinheng.core.errors import FormatError
from xinheng.engine.weights import open_checkpoint

STRING, ARRAY, U32, F32, BOOL, I32 = 8, 9, 4, 6, 7, 5
PEAK = 4 << 20
FLIPS = 3000


@pytest.fixture(scope="module")
def raw(gguf: Any) -> bytes:
    pairs = [
        ("general.architecture", STRING, "gemma3"),
        ("general.alignment", U32, 32),
        ("gemma3.block_count", U32, 1),
        ("eps", F32, 1e-6),
        ("tie", BOOL, 1),
        ("tokens", ARRAY, (STRING, ["<s>", "你", "c"])),
        ("scores", ARRAY, (F32, [0.0, 1.0, 2.0])),
        ("nested", ARRAY, (ARRAY, [(I32, [1]), (BOOL, [0, 1])])),
    ]
    tensors = [
        ("token_embd.weight", (4, 256), 14, bytes(range(210)) * 4),
        ("blk.0.attn_q.weight", (2, 64), 2, bytes(range(72))),
        ("blk.0.ffn_norm.weight", (8,), 0, bytes(32)),
        ("blk.0.x.weight", (2, 2, 32), 8, bytes(136)),
    ]
    file: bytes = gguf.file(pairs, tensors)
    return file


@pytest.fixture
def small_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < PEAK


def opens(path: Path, damaged: bytes) -> bool:
    """Whether a file opens; if so, every tensor can be read. Anything but a `FormatError` propagates."""
    path.unlink(missing_ok=True)
    path.write_bytes(damaged)
    try:
        checkpoint = open_checkpoint(path)
    except FormatError as error:
        assert path.name in str(error)
        assert len(str(error)) < 4096
        return False
    for name in checkpoint.names():
        assert checkpoint.array(name, np.float64).shape == checkpoint.shape(name)
    return True


def header_size(raw: bytes) -> int:
    return raw.rindex(b"blk.0.x.weight") + 14 + 4 + 3 * 8 + 12


@pytest.mark.usefixtures("small_memory")
def test_every_cut_of_the_header_is_refused(raw: bytes, tmp_path: Path) -> None:
    assert opens(tmp_path / "f", raw)
    for size in range(header_size(raw) + 1):
        assert not opens(tmp_path / "f", raw[:size]), size


@pytest.mark.usefixtures("small_memory")
def test_random_cuts(raw: bytes, tmp_path: Path) -> None:
    rng = random.Random(1)
    last_byte = raw.rindex(b"\0" * 136) + 136
    padding = -136 % 32
    assert last_byte == len(raw)
    for _ in range(200):
        size = rng.randrange(len(raw))
        assert opens(tmp_path / "f", raw[:size]) == (size >= len(raw) - padding), size


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize("seed", [1, 2])
def test_random_flips_in_the_header(raw: bytes, tmp_path: Path, seed: int) -> None:
    rng, size = random.Random(seed), header_size(raw)
    opened = 0
    for _ in range(FLIPS // 2):
        damaged = bytearray(raw)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            damaged[rng.randrange(4, size)] = rng.choice((rng.randrange(256), 0, 0xFF, 0x7F, 0x80))
        opened += opens(tmp_path / "f", bytes(damaged))
    assert 0 < opened < FLIPS // 2


@pytest.mark.usefixtures("small_memory")
def test_extreme_words_at_every_place(raw: bytes, tmp_path: Path) -> None:
    for place in range(4, header_size(raw) - 8, 2):
        for word in (0, 1 << 31, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
            opens(tmp_path / "f", raw[:place] + struct.pack("<Q", word) + raw[place + 8 :])


@pytest.mark.usefixtures("small_memory")
def test_random_bytes_after_the_magic(tmp_path: Path) -> None:
    rng = random.Random(3)
    for _ in range(300):
        body = struct.pack("<IQQ", 3, rng.randrange(3), rng.randrange(3)) + rng.randbytes(rng.randrange(300))
        opens(tmp_path / "f", b"GGUF" + body)
