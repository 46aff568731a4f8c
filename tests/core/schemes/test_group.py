"""Groups of codes: the layout byte by byte, and checkpoints of three formats brought into it without loss."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.core.schemes import SCHEMES, scheme
from xinheng.core.schemes.group import from_awq, from_compressed_tensors, from_gptq, unpack_words

NAMES = [f"int{bits}_g{group}{suffix}" for bits in (4, 8) for group in (32, 64, 128) for suffix in ("", "_bf16")]
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def words(fields: NDArray[Any], bits: int, axis: int) -> NDArray[np.int32]:
    """Fields as one number per row of 32-bit words, lowest first: the definition, bit by bit."""
    along = np.moveaxis(fields, axis, -1)
    flat = along.reshape(-1, along.shape[-1])
    made = []
    for row in flat:
        number = sum(int(value) << (bits * i) for i, value in enumerate(row))
        made.append([number >> (32 * w) & 0xFFFFFFFF for w in range(len(row) * bits // 32)])
    shaped = np.array(made, np.uint64).astype(np.uint32).view(np.int32).reshape(*along.shape[:-1], -1)
    return np.moveaxis(shaped, -1, axis)


def sample(bits: int, group: int, scale: Any = np.float16) -> tuple[Any, Any, Any, Any]:
    """Codes [96 or 256, 32], zero points [groups, 32], scales and the values [32, inputs] they mean."""
    rng = np.random.default_rng([bits, group])
    inputs = 256
    codes = rng.integers(0, 2**bits, (inputs, 32))
    zeros = rng.integers(1, 2**bits, (inputs // group, 32))
    scales = rng.uniform(0.01, 0.1, zeros.shape).astype(scale)
    wide = np.repeat(scales.astype(np.float64), group, axis=0) * (codes - np.repeat(zeros, group, axis=0))
    return codes, zeros, scales, wide.T


def test_the_layout_byte_by_byte() -> None:
    head = np.array([0.5], np.float16).tobytes() + np.array([3], "<i2").tobytes()
    block = np.frombuffer(head + bytes(range(0x10, 0x20)), np.uint8)
    values = scheme("int4_g32").unpack(block)
    assert values[:16].tolist() == [0.5 * (i - 3) for i in range(16)]
    assert values[16:].tolist() == [0.5 * (1 - 3)] * 16
    wide = np.frombuffer(head + bytes(range(224, 256)), np.uint8)
    assert scheme("int8_g32").unpack(wide).tolist() == [0.5 * (i - 3) for i in range(224, 256)]


@pytest.mark.parametrize("name", NAMES)
def test_packing_stays_within_half_a_step(name: str) -> None:
    kind = scheme(name)
    assert kind.pack is not None
    rng = np.random.default_rng(1)
    values = rng.normal(size=(3, 2, 2 * kind.block)).astype(np.float32)
    values[0, 0] = 0
    values[0, 1] = np.abs(values[0, 1]) + 1
    packed = kind.pack(values)
    assert packed.shape == (3, 2, kind.row_bytes(2 * kind.block))
    back = kind.unpack(packed, np.float64)
    np.testing.assert_array_equal(back.astype(np.float32), kind.unpack(packed))
    blocks, decoded = (x.reshape(-1, kind.block) for x in (values, back))
    step = (np.maximum(blocks.max(-1), 0) - np.minimum(blocks.min(-1), 0)) / (15 if "int4" in name else 255)
    slack = 2.0**-6 if name.endswith("bf16") and "int4" not in name else 2.0**-3
    slack = 1.5 if name.endswith("bf16") and "int8" in name else slack
    assert (np.abs(decoded - blocks).max(-1) <= step * (0.5 + slack)).all()
    assert not decoded[0].any()


def test_values_that_cannot_be_coded_are_refused() -> None:
    pack = scheme("int4_g32").pack
    assert pack is not None
    with pytest.raises(ValueError, match="a scale overflows float16"):
        pack(np.full(32, 1e7))
    with pytest.raises(ValueError, match="finite"):
        pack(np.full(32, np.nan))
    with pytest.raises(ValueError, match=r"n \* 32\], not \[31\]"):
        pack(np.zeros(31))
    with pytest.raises(ValueError, match=r"uint8 \[\.\.\., n \* 20\], not uint8 \[21\]"):
        scheme("int4_g32").unpack(np.zeros(21, np.uint8))
    with pytest.raises(ValueError, match="float32 or float64"):
        scheme("int4_g32").unpack(np.zeros(20, np.uint8), np.float16)
    assert np.isfinite(scheme("int4_g32").unpack(pack(np.full(32, 1e-30)))).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_fields_may_cross_words(bits: int, axis: int) -> None:
    fields = np.random.default_rng(bits).integers(0, 2**bits, (64, 96))
    np.testing.assert_array_equal(unpack_words(words(fields, bits, axis), bits, axis), fields)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("group", "suits"), [(32, 32), (64, 64), (128, 128), (256, 128)])
@pytest.mark.parametrize("true_zeros", [False, True])
def test_gptq(bits: int, group: int, suits: int, true_zeros: bool) -> None:
    codes, zeros, scales, values = sample(bits, group)
    stored = zeros if true_zeros else zeros - 1
    made = from_gptq(words(codes, bits, 0), words(stored, bits, 1), scales, bits=bits, true_zeros=true_zeros)
    assert made.scheme == f"int{8 if bits == 8 else 4}_g{suits}"
    assert made.order is None
    np.testing.assert_array_equal(scheme(made.scheme).unpack(made.data, np.float64), values)


def test_the_first_gptq_format_can_say_a_zero_point_of_sixteen() -> None:
    codes, zeros, scales, _ = sample(4, 32)
    zeros[:] = 16
    made = from_gptq(words(codes, 4, 0), words(zeros - 1, 4, 1), scales, bits=4)
    assert scheme(made.scheme).unpack(made.data).max() <= 0


def test_gptq_in_the_order_of_activations() -> None:
    codes, zeros, scales, _ = sample(4, 64)
    order = np.random.default_rng(0).permutation(256)
    g_idx = order % 4
    values = (scales.astype(np.float64)[g_idx] * (codes - zeros[g_idx])).T
    made = from_gptq(words(codes, 4, 0), words(zeros - 1, 4, 1), scales, bits=4, g_idx=g_idx)
    assert made.order is not None
    x = np.random.default_rng(1).integers(-8, 8, (3, 256)).astype(np.float64)
    weight = scheme(made.scheme).unpack(made.data, np.float64)
    np.testing.assert_allclose(x[:, made.order] @ weight.T, x @ values.T, rtol=1e-12)
    np.testing.assert_array_equal(weight, values[:, made.order])
    plain = from_gptq(words(codes, 4, 0), words(zeros - 1, 4, 1), scales, bits=4, g_idx=np.arange(256) // 64)
    assert plain.order is None
    with pytest.raises(ValueError, match="does not put as many inputs"):
        from_gptq(words(codes, 4, 0), words(zeros, 4, 1), scales, bits=4, g_idx=np.minimum(np.arange(256) // 50, 3))


def test_awq() -> None:
    codes, zeros, scales, values = sample(4, 64)

    def interleaved(fields: NDArray[Any]) -> NDArray[np.int32]:
        return words(fields.reshape(len(fields), -1, 8)[..., AWQ].reshape(fields.shape), 4, 1)

    made = from_awq(interleaved(codes), interleaved(zeros), scales)
    assert made.scheme == "int4_g64"
    np.testing.assert_array_equal(scheme("int4_g64").unpack(made.data, np.float64), values)
    # one word by hand: nibbles 0 to 7 of 0x76543210 belong to outputs 0 2 4 6 1 3 5 7
    word = np.full((32, 1), 0x76543210, np.int64).astype(np.int32)
    hand = from_awq(word, np.zeros((1, 1), np.int32), np.ones((1, 8), np.float16))
    assert scheme("int4_g32").unpack(hand.data)[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_tensors(bits: int) -> None:
    codes, zeros, scales, values = sample(bits, 128, ml_dtypes.bfloat16)
    scales, values = scales * scales.dtype.type(2.0**-30), values * 2.0**-30
    packed, scale = words(codes.T, bits, 1), scales.T
    made = from_compressed_tensors(packed, scale, words(zeros.T, bits, 0), bits=bits)
    assert made.scheme == f"int{bits}_g128_bf16"
    np.testing.assert_array_equal(scheme(made.scheme).unpack(made.data, np.float64), values)
    symmetric = from_compressed_tensors(packed, scale, bits=bits)
    wide = np.repeat(scale.astype(np.float64), 128, axis=1) * (codes.T - 2 ** (bits - 1))
    np.testing.assert_array_equal(scheme(symmetric.scheme).unpack(symmetric.data, np.float64), wide)


def test_what_does_not_fit_is_refused() -> None:
    codes, zeros, scales, _ = sample(4, 32)
    with pytest.raises(ValueError, match="do not fit each other"):
        from_gptq(words(codes, 4, 0), words(zeros, 4, 1), scales[:3], bits=4)
    with pytest.raises(ValueError, match="groups of 16 values"):
        from_gptq(words(codes[:32], 4, 0), words(zeros[:2], 4, 1), scales[:2], bits=4)
    with pytest.raises(ValueError, match="neither float16 nor bfloat16"):
        from_gptq(words(codes, 4, 0), words(zeros, 4, 1), np.full(scales.shape, 0.1, np.float32), bits=4)
    with pytest.raises(ValueError, match="do not hold fields of 3 bits"):
        unpack_words(np.zeros((2, 2), np.int32), 3, 0)
    assert set(NAMES) <= set(SCHEMES)
