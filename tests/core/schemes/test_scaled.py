"""Bytes with scales: signed integers by row, eight-bit floats by row and by tile."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from xinheng.core.errors import ModelError
from xinheng.core.hal import WeightPart, WeightSource
from xinheng.core.schemes import scheme
from xinheng.core.schemes.float8 import from_rows as float8_rows
from xinheng.core.schemes.float8 import from_tiles
from xinheng.core.schemes.int8 import from_rows as int8_rows

RNG = np.random.default_rng(4)
E4M3 = ml_dtypes.float8_e4m3fn


def pack(name: str, values: Any) -> Any:
    packer = scheme(name).pack
    assert packer is not None
    return packer(values)


def test_int8_rows() -> None:
    codes, scale = RNG.integers(-128, 128, (5, 7)), RNG.uniform(0.01, 0.1, 5).astype(np.float32)
    data = int8_rows(codes.astype(np.int8), scale)
    assert data.shape == (5, scheme("int8_row").row_bytes(7)) == (5, 11)
    exact = codes * scale.astype(np.float64)[:, None]
    np.testing.assert_array_equal(scheme("int8_row").unpack(data, np.float64), exact)
    np.testing.assert_array_equal(scheme("int8_row").unpack(data), exact.astype(np.float32))
    np.testing.assert_array_equal(int8_rows(codes.astype(np.int8), scale[:, None]), data)
    with pytest.raises(ValueError, match="one scale or one per row"):
        int8_rows(codes.astype(np.int8), scale[:3])
    with pytest.raises(ValueError, match=r"uint8 \[\.\.\., 4 \+ n \* 1\], not uint8 \[3\]"):
        scheme("int8_row").unpack(np.zeros(3, np.uint8))


def test_float8_rows() -> None:
    codes, scale = RNG.normal(size=(5, 7)).astype(E4M3), RNG.uniform(0.01, 0.1, (5, 1)).astype(np.float32)
    exact = codes.astype(np.float64) * scale
    for given in (codes, codes.view(np.uint8)):
        np.testing.assert_array_equal(scheme("float8_e4m3_row").unpack(float8_rows(given, scale), np.float64), exact)
    one = float8_rows(codes, np.array(0.5, np.float32))
    np.testing.assert_array_equal(scheme("float8_e4m3_row").unpack(one, np.float64), codes.astype(np.float64) / 2)
    with pytest.raises(ValueError, match="must be float8_e4m3fn"):
        float8_rows(codes.astype(np.float32), scale)


def test_float8_tiles_multiply_by_their_scale() -> None:
    codes, scale = RNG.normal(size=(200, 256)).astype(E4M3), RNG.uniform(0.01, 0.1, (2, 2)).astype(np.float32)
    data = from_tiles(codes, scale)
    exact = codes.astype(np.float64) * np.repeat(np.repeat(scale, 128, 0)[:200], 128, 1)
    np.testing.assert_array_equal(scheme("float8_e4m3_b128").unpack(data, np.float64), exact)
    np.testing.assert_array_equal(scheme("float8_e4m3_b128").unpack(data), exact.astype(np.float32))
    wide = from_tiles(codes, scale[:, :1], (128, 256))
    assert wide.shape == data.shape == (200, 264)
    with pytest.raises(ValueError, match=r"has scales \[2, 2\], not \[2, 1\]"):
        from_tiles(codes, scale[:, :1])
    with pytest.raises(ValueError, match="no multiple of 128 wide"):
        from_tiles(codes[:, :100], scale)


@pytest.mark.parametrize(
    ("name", "share"), [("int8_row", 0.51 / 127), ("float8_e4m3_row", 2.0**-4), ("float8_e4m3_b128", 2.0**-4)]
)
def test_packing_stays_within_half_a_step(name: str, share: float) -> None:
    values = RNG.normal(size=(2, 3, 256)).astype(np.float32)
    values[0, 0] = 0
    packed = pack(name, values)
    assert packed.shape == (2, 3, scheme(name).row_bytes(256))
    back = scheme(name).unpack(packed, np.float64)
    largest = np.abs(values).max(-1, keepdims=True)
    near = share * (largest if name == "int8_row" else np.abs(values) + largest / 448)
    assert (np.abs(back - values) <= near).all()
    assert np.isfinite(scheme(name).unpack(pack(name, np.full((1, 128), 1e-45)))).all()
    with pytest.raises(ValueError, match="finite"):
        pack(name, np.full((1, 128), np.inf))


def test_columns_keep_the_header_of_their_row() -> None:
    codes, scale = RNG.integers(-127, 128, (4, 12)).astype(np.int8), RNG.uniform(0.01, 0.1, 4).astype(np.float32)
    data = int8_rows(codes, scale)
    source = WeightSource("w", (4, 12), (WeightPart("int8_row", 4, lambda: data),))
    assert source.nbytes == data.nbytes
    np.testing.assert_array_equal(source.columns(3, 8).unpack(), source.unpack()[:, 3:8])
    np.testing.assert_array_equal(source.columns(3, 8).rows(1, 3).unpack(), source.unpack()[1:3, 3:8])
    tiles = pack("float8_e4m3_b128", RNG.normal(size=(4, 256)))
    blocks = WeightSource("w", (4, 256), (WeightPart("float8_e4m3_b128", 4, lambda: tiles),))
    np.testing.assert_array_equal(blocks.columns(128, 256).unpack(), blocks.unpack()[:, 128:])
    with pytest.raises(ModelError, match="slice at multiples of 128"):
        blocks.columns(0, 64)
