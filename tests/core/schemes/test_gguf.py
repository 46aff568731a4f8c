"""GGUF block formats against golden values made with the public `gguf` package (version 0.19)."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.core.schemes import Scheme, scheme
from xinheng.core.schemes.gguf import CHUNK

SMALL = (0, 1, 2, 15, 16, 31)
WIDE = (*SMALL, 32, 63, 64, 127, 128, 255)

# name: (byte of d, byte of m or dmin, elements at SMALL or WIDE, sum of the block)
GOLDEN_DECODE: dict[str, tuple[int, int | None, list[float], float]] = {
    "q4_0": (0, None, [-1.5, 1, 3.5, -4, -1.5, 0], -10.5),
    "q4_1": (0, 2, [7.75, 2.25, 4.75, 5.25, 4.75, 6.25], 130.5),
    "q5_0": (0, None, [4.5, -1, 1.5, -6, 7, 0.5], 7.5),
    "q5_1": (0, 2, [9.75, 12.25, 14.75, 15.25, 9.75, 2.75], 260.5),
    "q8_0": (0, None, [42.5, 61, -48.5, -64, -45.5, -24], -88),
    "iq4_nl": (0, None, [-17.5, 12.5, 56.5, -63.5, -17.5, 0.5], -128.5),
    "q2_k": (80, 82, [16.5, 0, 5.5, 11, -0.75, -0.75, 3.75, 3.25, 5.25, 21, 3.75, 2.25], 1029.5),
    "q3_k": (108, None, [40.5, -54, 13.5, -27, -48, 32, -11, 5, 17, 36, 1, 21], 479),
    "q4_k": (
        0,
        2,
        [157.75, -12.75, 64.75, 80.25, 157.75, 80.25, 4, 20, 210.25, 40.5, 211.5, 24.25],
        27220,
    ),
    "q5_k": (
        0,
        2,
        [405.75, -12.75, 312.75, 80.25, 405.75, 80.25, 56, 40, 210.25, -1.5, 523.5, 54.25],
        58108,
    ),
    "q6_k": (208, None, [-715.5, 848, 291.5, -159, -216, -48, 115.5, -290, -1520, 750, -175.5, -30], 2306),
    "iq4_xs": (0, None, [32.5, -0.5, -34.5, -44.5, 32.5, 17.5, 227.5, -87.5, 390, 98, -292.5, -8], -5502.5),
}

GOLDEN_ENCODE = {
    "q4_0": "80b47e6d6d5c5c4c4b4b3a3a292918180807",
    "q4_1": "223480be80809191a2a2b3b3c4c4d5d5e6e6f7f7",
    "q5_0": "80b0ff3f0000dccbcab9a89786756454434231201f0e",
    "q5_1": "003080be0000ffff00112233445566778899aabbccddeeff",
    "q8_0": "8924a4abb2b9c0c8cfd6dde4ebf2f900070e151c232a313840474e555c636a71787f",
}

# SHA-256 of the float32 values of 64 blocks whose bytes are SHAKE-256 of the name; NaN replaced by 0.
DECODE_DIGEST = {
    "q4_0": "9b8ac265d96fbbce2cac9a368e45c0a72ca2870e508089b785050bc2c30b2c07",
    "q4_1": "fada3fe858a9a26c8bb36051dbfa041293b0a90a0d7e6d79abf98fc5622b9cc2",
    "q5_0": "51f74a17098ad19d0ecb078d2332bea8e355a1a547e03c7f8d15365b2db33524",
    "q5_1": "d22e9e39f972d23dbc45dc30f17bc75fda94504072a9cd766d870eda7b5e9ae9",
    "q8_0": "cad4b88606d505fc56c126f4a4bfd6f569947363bebe3e17af6ce27208f9dca3",
    "q2_k": "28122966b871d01c8d284c7d93d29a87b1cf33d92357b993f2d5b5e69fb78c5b",
    "q3_k": "430cc605a2ca6a36e1e3de5bfa3aece2dbc4d027d9604c577fcfb73720ef0225",
    "q4_k": "92bebe608c1eccfaeff6c7656cb9ab8c8eff5a857a9a791730e43aa0c945eb32",
    "q5_k": "cd951a8be7efb2ecc0f50860f5a1a9bc0acd83c97e5ee49c1410e490961c4cc5",
    "q6_k": "4434924d712cdc035d73318d9833a18da09cca41d6062ad861ad42e8ee2f7b82",
    "iq4_nl": "2947ca3cfb1f8629795cd30381baa398f34b03709d394040416bf8f750bc4443",
    "iq4_xs": "ff39ae51c7f593358be9d2804f3665916a7d51e6b55a8a0da19828e1a3cb9753",
    "mxfp4": "ab52bc4f0d4d49ad8d5ac18fc9ca83cd0b759c0e6bd68323ab8a28db6834b96d",
}

# SHA-256 of the packed bytes of 64 blocks of int32 SHAKE-256 values / 2^28, block 5 all zero.
ENCODE_DIGEST = {
    "q4_0": "b7bbc5b02e0b5f97c1a24491e00c2bd93f9efaa4205bd01ee205e40168bd29c0",
    "q4_1": "89967007e17052ea372d4f845c7420ea26449c2a1f73a179d4b8b3525c49bc93",
    "q5_0": "67dba79606426dd0ddd1fe42d472b9ae3ce134ebf363f7d5140cfc7e1cf5c933",
    "q5_1": "00b97b469bb873938552e816664f323fc0a3d1047ff41d1a9b079300b9e0d56d",
    "q8_0": "01a211851d31c07ef36297b90217f5815b0b5805315eee840258eeec41b0a4a2",
}


def random_blocks(kind: Scheme, count: int) -> NDArray[np.uint8]:
    raw = hashlib.shake_256(kind.name.encode()).digest(count * kind.block_bytes)
    return np.frombuffer(raw, np.uint8).reshape(count, kind.block_bytes)


def random_values(name: str) -> NDArray[Any]:
    raw = np.frombuffer(hashlib.shake_256(name.encode()).digest(64 * 32 * 4), "<i4").reshape(64, 32)
    values = (raw / 2.0**28).astype(np.float32)
    values[5] = 0
    return values


def pack(name: str, values: NDArray[Any]) -> NDArray[np.uint8]:
    packer = scheme(name).pack
    assert packer is not None
    return packer(values)


@pytest.mark.parametrize("name", GOLDEN_DECODE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_golden_decode(name: str, dtype: type) -> None:
    d, m, elements, total = GOLDEN_DECODE[name]
    kind = scheme(name)
    block = np.array([(37 * i + 11) % 256 for i in range(kind.block_bytes)], np.uint8)
    block[d : d + 2] = np.array([0.5], np.float16).view(np.uint8)
    if m is not None:
        block[m : m + 2] = np.array([0.25], np.float16).view(np.uint8)
    values = kind.unpack(block, dtype)
    assert values.dtype == dtype
    assert values.shape == (kind.block,)
    assert values[list(WIDE if kind.block == 256 else SMALL)].tolist() == elements
    assert values.sum(dtype=np.float64) == total


def test_golden_decode_mxfp4() -> None:
    block = np.array([(37 * i + 11) % 256 for i in range(17)], np.uint8)
    block[0] = 126  # a scale of one half
    values = scheme("mxfp4").unpack(block)
    assert values[list(SMALL)].tolist() == [0.0, 1.5, -0.5, -0.75, 0.75, 1.5]
    assert values.sum() == 6.25


@pytest.mark.parametrize(("exponent", "scale"), [(0, 2.0**-127), (1, 2.0**-126), (254, 2.0**127), (255, 2.0**128)])
def test_mxfp4_has_every_exponent(exponent: int, scale: float) -> None:
    block = np.array([exponent, 0x71, *[0] * 15], np.uint8)  # e2m1 codes 1 and 7: 0.5 and 6
    assert scheme("mxfp4").unpack(block, np.float64)[[0, 16]].tolist() == [0.5 * scale, 6 * scale]
    with np.errstate(over="ignore"):
        rounded = np.array([0.5 * scale, 6 * scale]).astype(np.float32)
    assert scheme("mxfp4").unpack(block)[[0, 16]].tolist() == rounded.tolist()


@pytest.mark.parametrize("name", DECODE_DIGEST)
def test_float32_is_the_public_package_bit_for_bit(name: str) -> None:
    values = scheme(name).unpack(random_blocks(scheme(name), 64))
    values = np.where(np.isnan(values), np.float32(0), values).astype("<f4")
    assert hashlib.sha256(values.tobytes()).hexdigest() == DECODE_DIGEST[name]


@pytest.mark.parametrize("name", DECODE_DIGEST)
def test_float32_is_float64_rounded_once(name: str) -> None:
    blocks = random_blocks(scheme(name), 512)
    with np.errstate(over="ignore"):
        rounded = scheme(name).unpack(blocks, np.float64).astype(np.float32)
    np.testing.assert_array_equal(scheme(name).unpack(blocks), rounded)


@pytest.mark.parametrize("name", ["q4_1", "q5_1", "q2_k", "q4_k", "q5_k"])
def test_float64_is_exact(name: str) -> None:
    """With factor and minimum of far apart sizes: the value is the exact sum of its two exact products."""
    d, m, *_ = GOLDEN_DECODE[name]
    assert m is not None
    parts = []
    for factor, minimum in ((2.0**-24, 65504.0), (2.0**-24, 0.0), (0.0, 65504.0)):
        blocks = random_blocks(scheme(name), 4).copy()
        blocks[:, d : d + 2] = np.array([factor], np.float16).view(np.uint8)
        blocks[:, m : m + 2] = np.array([minimum], np.float16).view(np.uint8)
        parts.append([Fraction(value) for value in scheme(name).unpack(blocks, np.float64).ravel().tolist()])
    assert all(whole == product + low for whole, product, low in zip(*parts, strict=True))
    assert any(Fraction(float(np.float32(float(whole)))) != whole for whole in parts[0])


@pytest.mark.parametrize("name", GOLDEN_ENCODE)
def test_golden_encode(name: str) -> None:
    x = (np.arange(32) - 13) / 8
    assert pack(name, x).tobytes().hex() == GOLDEN_ENCODE[name]


@pytest.mark.parametrize("name", ENCODE_DIGEST)
def test_pack_is_the_public_package_bit_for_bit(name: str) -> None:
    assert hashlib.sha256(pack(name, random_values(name)).tobytes()).hexdigest() == ENCODE_DIGEST[name]


@pytest.mark.parametrize(("name", "levels"), [("q4_0", 8), ("q4_1", 15), ("q5_0", 16), ("q5_1", 31), ("q8_0", 127)])
def test_pack_stays_within_a_step(name: str, levels: int) -> None:
    x = random_values(name)
    spread = np.abs(x).max(axis=1) if name.endswith("_0") else np.ptp(x, axis=1)
    error = np.abs(scheme(name).unpack(pack(name, x)) - x).max(axis=1)
    # A symmetric code lacks the level opposite to its largest value, so it can be off by a whole step there.
    steps = 1.0 if name in ("q4_0", "q5_0") else 0.5
    assert (error <= spread / levels * steps + spread * 2.0**-9).all()
    assert (error[5] == 0).all()


@pytest.mark.parametrize("name", DECODE_DIGEST)
def test_leading_axes_views_and_chunks(name: str) -> None:
    kind = scheme(name)
    blocks = random_blocks(kind, 48).reshape(4, 3, 4 * kind.block_bytes)
    values = kind.unpack(blocks)
    assert values.shape == (4, 3, 4 * kind.block)
    cut = kind.unpack(blocks[1:, ::2, kind.block_bytes : 3 * kind.block_bytes])
    np.testing.assert_array_equal(cut, values[1:, ::2, kind.block : 3 * kind.block])
    assert kind.unpack(blocks[:0]).shape == (0, 3, 4 * kind.block)
    many = CHUNK // kind.block + 5
    long = np.resize(random_blocks(kind, 48), (many, kind.block_bytes))
    expected = np.resize(kind.unpack(random_blocks(kind, 48)), (many, kind.block))
    np.testing.assert_array_equal(kind.unpack(long), expected)


def test_wrong_arguments_are_refused() -> None:
    unpack = scheme("q4_0").unpack
    with pytest.raises(ValueError, match="float32 or float64, not float16"):
        unpack(np.zeros(18, np.uint8), np.float16)
    with pytest.raises(ValueError, match=r"uint8 \[\.\.\., n \* 18\], not uint8 \[17\]"):
        unpack(np.zeros(17, np.uint8))
    with pytest.raises(ValueError, match="not int8"):
        unpack(cast("Any", np.zeros(18, np.int8)))
    with pytest.raises(ValueError, match=r"n \* 32\], not \[33\]"):
        pack("q4_0", np.zeros(33))
    with pytest.raises(ValueError, match="finite"):
        pack("q4_1", np.full(32, np.inf))
    with pytest.raises(ValueError, match="overflows float16"):
        pack("q8_0", np.full(32, 1e8))
    assert pack("q5_1", np.zeros((0, 32))).shape == (0, 24)
