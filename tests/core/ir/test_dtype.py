"""Element types: their constants, and one rounding whatever the way."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xinheng.core.errors import GraphError
from xinheng.core.ir.dtype import (
    DTYPES,
    DType,
    bfloat16,
    cast_to,
    dtype,
    float16,
    float32,
    float64,
    from_numpy,
    int8,
    round_to,
)

FLOATS = [kind for kind in DTYPES.values() if kind.is_float and kind is not float64]
SMALL = [kind for kind in FLOATS if kind.bits <= 16]


def finite(kind: DType) -> Any:
    """Every finite value of a small format, ascending."""
    codes = np.arange(2**kind.bits, dtype=np.uint16 if kind.bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):
        values = codes.view(kind.numpy).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


@pytest.mark.parametrize("kind", SMALL, ids=str)
def test_constants_agree_with_ml_dtypes(kind: DType) -> None:
    finfo: Any = ml_dtypes.finfo
    info = finfo(kind.numpy)
    assert kind.largest == float(info.max)
    assert kind.smallest_normal == float(info.smallest_normal)
    assert kind.unit_roundoff == float(info.eps) / 2 or kind.name == "float8_e8m0fnu"
    if kind.name != "float8_e8m0fnu":
        assert 2 * kind.eta == float(info.smallest_subnormal)


@pytest.mark.parametrize("kind", [float32, float64], ids=str)
def test_constants_agree_with_numpy(kind: DType) -> None:
    info = np.finfo(kind.numpy)
    assert kind.largest == float(info.max)
    assert kind.smallest_normal == float(info.smallest_normal)
    assert kind.unit_roundoff == float(info.eps) / 2
    assert kind is float64 or 2 * kind.eta == float(info.smallest_subnormal)


@pytest.mark.parametrize("kind", SMALL, ids=str)
def test_representable_values_and_ties(kind: DType) -> None:
    values = finite(kind)
    np.testing.assert_array_equal(round_to(values, kind), values)
    middles = (values[1:] + values[:-1]) / 2
    with np.errstate(all="ignore"):
        expected = middles.astype(np.float32).astype(kind.numpy).astype(np.float64)
    np.testing.assert_array_equal(round_to(middles, kind), expected)
    above, below = np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)
    np.testing.assert_array_equal(round_to(above, kind), values[1:])
    np.testing.assert_array_equal(round_to(below, kind), values[:-1])


@given(st.floats(width=64))
def test_rounding_agrees_with_numpy(x: float) -> None:
    with np.errstate(all="ignore"):
        for kind in (float32, float16):
            np.testing.assert_array_equal(round_to(x, kind), np.float64(x).astype(kind.numpy).astype(np.float64))


@given(st.floats(width=32))
def test_float32_to_bfloat16_agrees_with_ml_dtypes(x: float) -> None:
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(round_to(x, bfloat16), np.float32(x).astype(bfloat16.numpy).astype(np.float64))


@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_overflow_subnormals_and_specials(kind: DType) -> None:
    assert round_to(2 * kind.largest, kind) == np.inf
    assert round_to(-2 * kind.largest, kind) == -np.inf
    assert round_to(np.inf, kind) == np.inf
    assert np.isnan(round_to(np.nan, kind))
    assert np.signbit(round_to(-0.0, kind))
    assert round_to(kind.eta, kind) == 0.0
    assert round_to(1.5 * kind.eta, kind) == 2 * kind.eta
    assert round_to(1.5 * kind.eta, kind, flush=True) == 0.0 or kind.smallest_normal <= 2 * kind.eta
    assert round_to(kind.smallest_normal, kind, flush=True) == kind.smallest_normal


def test_two_roundings_would_show() -> None:
    trap = np.array([1 + 2.0**-8 + 2.0**-40, -1 - 2.0**-8 - 2.0**-40])
    assert trap.astype(bfloat16.numpy).astype(float).tolist() == [1.0, -1.0]
    assert round_to(trap, bfloat16).tolist() == [1 + 2.0**-7, -1 - 2.0**-7]
    assert cast_to(trap, bfloat16).astype(float).tolist() == [1 + 2.0**-7, -1 - 2.0**-7]
    count = np.array([2**25 + 2**17 + 1])
    for kind in (np.int64, np.int32, np.float64):
        assert cast_to(count.astype(kind), bfloat16).astype(float).tolist() == [2.0**25 + 2.0**18]


def test_casts() -> None:
    assert cast_to(np.array([1.7, -1.7]), int8).tolist() == [1, -1]
    assert cast_to(np.array([7e4]), float16).tolist() == [np.inf]
    assert cast_to(np.array([0, 3]), DTYPES["bool"]).tolist() == [False, True]
    for kind in DTYPES.values():
        made = cast_to(np.array([1.0, 2.0]), kind)
        assert made.dtype == kind.numpy
        assert from_numpy(made.dtype) is kind


def test_lookup() -> None:
    assert dtype("float32") is float32
    assert dtype(float32) is float32
    assert str(float32) == repr(float32) == "float32"
    assert from_numpy(np.int8) is int8
    with pytest.raises(GraphError, match="unknown dtype 'flaot32', did you mean 'float32'"):
        dtype("flaot32")
    with pytest.raises(GraphError, match="unknown dtype 'complex64'"):
        from_numpy(np.complex64)


def test_kinds_and_sizes() -> None:
    assert {k.name for k in DTYPES.values() if k.is_integer} == {
        *("int64", "int32", "int16", "int8", "int4", "uint64", "uint32", "uint16", "uint8", "uint4")
    }
    assert DTYPES["int4"].itemsize == 0.5
    assert float64.itemsize == 8
    assert not DTYPES["bool"].is_integer
