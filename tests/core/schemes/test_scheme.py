"""The registry of weight schemes, and the dense ones."""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

from xinheng.core.errors import GraphError
from xinheng.core.ir.dtype import DTYPES, bfloat16
from xinheng.core.schemes import SCHEMES, Scheme, register, scheme

PACKED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"]


def test_every_promised_scheme_is_registered() -> None:
    assert set(PACKED) <= set(SCHEMES)
    assert {"float64", "float32", "float16", "bfloat16", "int8", "float8_e4m3fn"} <= set(SCHEMES)
    assert all(scheme(name).name == name for name in SCHEMES)


def test_an_unknown_scheme_names_the_nearest() -> None:
    with pytest.raises(GraphError, match="did you mean 'q4_k'"):
        scheme("q4k")


def test_a_name_is_taken_once() -> None:
    with pytest.raises(GraphError, match="registered already"):
        register(scheme("q4_0"))


def test_sizes_are_positive() -> None:
    with pytest.raises(GraphError, match="positive"):
        register(Scheme("empty", 0, 1, scheme("int8").unpack))
    assert "empty" not in SCHEMES


def test_the_registry_is_read_only() -> None:
    with pytest.raises(TypeError):
        cast("dict[str, Scheme]", SCHEMES)["x"] = scheme("int8")


def test_row_bytes() -> None:
    assert scheme("q4_k").row_bytes(512) == 288
    assert scheme("float16").row_bytes(7) == 14
    with pytest.raises(ValueError, match="'q4_k' codes blocks of 256 values; 576"):
        scheme("q4_k").row_bytes(576)


@pytest.mark.parametrize(
    ("name", "bits"), [("q4_0", 4.5), ("q5_1", 6.0), ("q2_k", 2.625), ("q6_k", 6.5625), ("mxfp4", 4.25), ("int8", 8)]
)
def test_bits_per_value(name: str, bits: float) -> None:
    assert scheme(name).bits == bits


@pytest.mark.parametrize("name", [name for name, kind in DTYPES.items() if kind.bits % 8 == 0])
def test_dense_round_trip(name: str) -> None:
    dense = scheme(name)
    assert (dense.block, dense.dense) == (1, DTYPES[name])
    values = np.array([[1, 2, 4], [8, 16, 32]], np.float64)
    assert dense.pack is not None
    packed = dense.pack(values)
    assert packed.dtype == np.uint8
    assert packed.shape == (2, dense.row_bytes(3))
    for target in (np.float32, np.float64, DTYPES[name].numpy):
        out = dense.unpack(packed, target)
        assert out.dtype == target
        assert out.flags.writeable
        np.testing.assert_array_equal(out.astype(np.float64), values)


def test_dense_bytes_are_the_little_endian_numbers() -> None:
    pack = scheme("float32").pack
    assert pack is not None
    assert pack(np.array([1.5])).tobytes() == b"\x00\x00\xc0\x3f"


def test_dense_rounds_once() -> None:
    # 1 + 2^-8 + 2^-40 lies just above the middle of two bfloat16 numbers; float32 would first make it the middle.
    value = np.array([1 + 2.0**-8 + 2.0**-40])
    pack = scheme("bfloat16").pack
    assert pack is not None
    assert scheme("bfloat16").unpack(pack(value), np.float64)[0] == 1 + 2.0**-7
    assert scheme("float64").unpack(value.view(np.uint8), ml_dtypes.bfloat16)[0] == 1 + 2.0**-7
    assert pack(value).view(bfloat16.numpy)[0] == 1 + 2.0**-7


def test_dense_unpacks_strided_and_unaligned_views() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows: Any = np.concatenate([np.zeros((3, 1), np.uint8), values.view(np.uint8)], axis=1)
    rows.setflags(write=False)
    np.testing.assert_array_equal(scheme("float32").unpack(rows[:, 1:]), values)
    np.testing.assert_array_equal(scheme("float32").unpack(rows[:, 5:13]), values[:, 1:3])
