"""Tiled weights: products with int8 activations are exact in their integers, and the same in any batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from xinheng.backends._torch import TorchWeight
from xinheng.backends.cpu.kernels.tiles import TiledWeight, tile_embedding_kernel, tile_linear_kernel, tileable, tiled
from xinheng.core.errors import DeviceError
from xinheng.core.hal import WeightPart, WeightSource
from xinheng.core.ir.dtype import dtype

from .tensors import on_tensors

GROUPS = [f"int{bits}_g{size}{kind}" for bits in (4, 8) for size in (32, 64, 128) for kind in ("", "_bf16")]
BLOCKS = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"]
SCHEMES = [*BLOCKS, "int8_row", *GROUPS]
FORMATS = [*BLOCKS, "int8_row", "int4_g128", "int4_g32", "int8_g64_bf16"]
"""Schemes such that every format of tiles is there."""


def source_of(weight: TorchWeight) -> WeightSource:
    parts = tuple(WeightPart(p.scheme, p.rows, lambda p=p: p.data.numpy()) for p in weight.parts)  # type: ignore[misc]
    return WeightSource("w", weight.shape, parts)


def tiles_of(build: SimpleNamespace, weight: TorchWeight) -> TiledWeight:
    return tiled(build.library, source_of(weight))


def quantised(x: torch.Tensor) -> NDArray[np.float64]:
    """The activations as the kernel sees them: a float32 scale for 32 values, and codes."""
    blocks = x.float().numpy().reshape(*x.shape[:-1], -1, 32)
    scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    inverse = np.where(scales > 0, np.float32(1) / np.where(scales > 0, scales, 1), np.float32(0))
    codes = np.rint(blocks * inverse).astype(np.float64)
    return np.asarray((codes * scales).reshape(x.shape), np.float64)


@pytest.mark.parametrize("tokens", [1, 2, 13])
@pytest.mark.parametrize("name", FORMATS)
def test_products_follow_the_declared_program(
    build: SimpleNamespace, random_weight: Any, exact: Any, name: str, tokens: int
) -> None:
    weight = random_weight([(name, 70)], 768)
    x = torch.randn(tokens, 768, generator=torch.Generator().manual_seed(tokens))
    got = on_tensors(tile_linear_kernel(build.library))(x, tiles_of(build, weight))
    values, seen = exact(weight), quantised(x)
    bound = (np.abs(seen) @ np.abs(values).T) * (768 / 16 + 4) * 2.0**-24 + 1e-6
    assert (np.abs(got.double().numpy() - seen @ values.T) <= bound).all()


def test_activations_of_zero_and_extreme_size(build: SimpleNamespace, random_weight: Any, exact: Any) -> None:
    weight = random_weight([("q4_0", 16)], 64)
    x = torch.zeros(3, 64)
    x[1, 5], x[2, 40] = 1e30, -1e-30
    got = on_tensors(tile_linear_kernel(build.library))(x, tiles_of(build, weight)).double().numpy()
    np.testing.assert_allclose(got, x.double().numpy() @ exact(weight).T, rtol=1e-5, atol=1e-45)


def test_activations_that_are_not_finite_make_nan(build: SimpleNamespace, random_weight: Any) -> None:
    x = torch.ones(7, 96)
    x[1, 5], x[2, 40], x[4, 95] = float("nan"), float("inf"), -float("inf")
    run, weight = on_tensors(tile_linear_kernel(build.library)), tiles_of(build, random_weight([("q4_0", 17)], 96))
    lost = [False, True, True, False, True, False, False]
    assert run(x, weight).isnan().all(-1).tolist() == lost
    assert run(x, weight).isnan().any(-1).tolist() == lost
    assert [bool(run(row, weight).isnan().all()) for row in x] == lost


@pytest.mark.parametrize("exponent", [-100, -124, -132])
def test_activations_near_the_end_of_float32(build: SimpleNamespace, random_weight: Any, exponent: int) -> None:
    run, weight = on_tensors(tile_linear_kernel(build.library)), tiles_of(build, random_weight([("q8_0", 16)], 64))
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))
    expected, made = run(x, weight).double(), run(x * 2.0**exponent, weight).double() * 2.0**-exponent
    # scales of 2^-132 / 127 have ten bits left
    torch.testing.assert_close(made, expected, rtol=0, atol=float(expected.abs().max()) * 2.0**-8)


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(native: SimpleNamespace, random_weight: Any, name: str) -> None:
    weight = tiles_of(native, random_weight([(name, 133)], 512))
    run, x = on_tensors(tile_linear_kernel(native.library)), torch.randn(23, 512)
    whole = run(x, weight)
    for size in (1, 2, 3, 4, 5, 8, 11):
        pieces = torch.cat([run(x[i : i + size], weight) for i in range(0, 23, size)])
        assert torch.equal(whole, pieces), f"{name} in pieces of {size}"
    native.library.set_threads(1)
    assert torch.equal(whole, run(x, weight))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_parts_bias_and_element_types(native: SimpleNamespace, random_weight: Any, kind: torch.dtype) -> None:
    weight = random_weight([("q4_k", 21), ("q6_k", 7), ("q8_0", 1)], 512)
    run, x, bias = (
        on_tensors(tile_linear_kernel(native.library)),
        torch.randn(2, 3, 512).to(kind),
        torch.randn(29).to(kind),
    )
    got = run(x, tiles_of(native, weight), bias)
    assert got.dtype is kind
    assert got.shape == (2, 3, 29)
    pieces = [run(x, tiles_of(native, TorchWeight((p.rows, 512), (p,)))).float() for p in weight.parts]
    plain = run(x.float(), tiles_of(native, weight)) + bias.float()
    assert torch.equal(got, plain.to(kind))
    assert torch.equal(torch.cat(pieces, -1).to(kind), run(x, tiles_of(native, weight)))


@pytest.mark.parametrize("name", SCHEMES)
def test_rows_are_read_as_the_file_has_them(build: SimpleNamespace, random_weight: Any, exact: Any, name: str) -> None:
    weight = random_weight([(name, 37), ("q8_0", 5)], 512)
    ids = torch.tensor([[0, 41, 36], [37, 17, 0]], dtype=torch.int32)
    rows = on_tensors(tile_embedding_kernel(build.library))(ids, tiles_of(build, weight), dtype=dtype("float32"))
    np.testing.assert_array_equal(rows.numpy(), exact(weight)[ids.numpy()].astype(np.float32))
    with pytest.raises(DeviceError, match="index 42 is outside the 42 rows"):
        on_tensors(tile_embedding_kernel(build.library))(
            torch.tensor([42]), tiles_of(build, weight), dtype=dtype("float32")
        )


def test_rows_packed_in_several_pieces(
    native: SimpleNamespace, random_weight: Any, exact: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xinheng.backends.cpu.kernels.tiles.CHUNK", 40 * 288)
    weight = random_weight([("q4_k", 133)], 512)
    rows = on_tensors(tile_embedding_kernel(native.library))(
        torch.arange(133), tiles_of(native, weight), dtype=dtype("float32")
    )
    np.testing.assert_array_equal(rows.numpy(), exact(weight).astype(np.float32))


def test_what_cannot_be_tiled_is_refused_with_the_reason(native: SimpleNamespace, random_weight: Any) -> None:
    assert tileable(native.library, (("q4_0", 5), ("q2_k", 3)), 256) == "no tiles for scheme 'q2_k'"
    assert tileable(native.library, (("q6_k", 5),), 128) == "128 columns do not fill the blocks of q6_k"
    assert tileable(native.library, (("float16", 5),), 32) == "no tiles for scheme 'float16'"
    assert tileable(native.library, (("float16", 5),), 32, floats=True) is None
    with pytest.raises(DeviceError, match="cannot be tiled"):
        tiles_of(native, random_weight([("q2_k", 16)], 256))
