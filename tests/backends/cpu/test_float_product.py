"""Float activations times tiled weights: as near as float32 allows, and the same bits in any batch."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends._torch import TorchWeight, TorchWeightPart
from xinheng.backends.cpu.kernels.float_product import float_product_kernel
from xinheng.backends.cpu.kernels.tiles import TiledWeight, tile_embedding_kernel, tiled
from xinheng.core.errors import DeviceError
from xinheng.core.hal import WeightPart, WeightSource
from xinheng.core.ir.dtype import dtype

from .tensors import on_tensors

FLOATS = ["float32", "bfloat16", "float16"]
FORMATS = [
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_nl",
    "iq4_xs",
    "mxfp4",
    "int8_row",
    "int4_g128",
    "int4_g32",
    "int8_g64_bf16",
    *FLOATS,
]
KINDS = [torch.float32, torch.bfloat16, torch.float16]
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 33)


def values_of(part: TorchWeightPart) -> Any:
    return (part.data.view(torch.uint16) if part.data.dtype is torch.bfloat16 else part.data).numpy()


def tiles_of(build: SimpleNamespace, weight: TorchWeight) -> TiledWeight:
    parts = tuple(WeightPart(p.scheme, p.rows, lambda p=p: values_of(p)) for p in weight.parts)  # type: ignore[misc]
    return tiled(build.library, WeightSource("w", weight.shape, parts))


def halves(values: torch.Tensor) -> TorchWeight:
    """A weight of bfloat16."""
    rows, columns = values.shape
    return TorchWeight((rows, columns), (TorchWeightPart("bfloat16", rows, values.bfloat16()),))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tokens", [1, 3, 7, 13, 31])
@pytest.mark.parametrize("name", FORMATS)
def test_products(build: SimpleNamespace, random_weight: Any, exact: Any, name: str, tokens: int) -> None:
    weight, x = random_weight([(name, 70)], 768), normal(tokens, 768)
    got = on_tensors(float_product_kernel(build.library))(x, tiles_of(build, weight)).double().numpy()
    seen, values = x.double().numpy(), exact(weight)
    # a chain of 256, the sums of three, and the rounding of values that are not exact
    bound = (256 + 3 + 1) * 2.0**-24 * (np.abs(seen) @ np.abs(values).T)
    assert (np.abs(got - seen @ values.T) <= bound).all()


@pytest.mark.parametrize("columns", [1, 5, 33, 300])
@pytest.mark.parametrize("name", FLOATS)
def test_floats_have_any_number_of_columns(
    build: SimpleNamespace, random_weight: Any, exact: Any, name: str, columns: int
) -> None:
    weight = random_weight([(name, 19)], columns)
    for tokens in (1, 6, 14):
        x = normal(tokens, columns)
        got = on_tensors(float_product_kernel(build.library))(x, tiles_of(build, weight)).double().numpy()
        np.testing.assert_allclose(got, x.double().numpy() @ exact(weight).T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(
    native: SimpleNamespace, random_weight: Any, name: str, kind: torch.dtype
) -> None:
    weight = tiles_of(native, random_weight([(name, 133)], 768))
    run, x = on_tensors(float_product_kernel(native.library)), normal(67, 768).to(kind)
    whole = run(x, weight)
    for size in SIZES:
        pieces = torch.cat([run(x[i : i + size], weight) for i in range(0, len(x), size)])
        assert torch.equal(whole, pieces), f"{name} in pieces of {size}"
    native.library.set_threads(1)
    assert torch.equal(whole, run(x, weight))


def test_long_inputs_are_packed_in_blocks_without_a_trace(native: SimpleNamespace, random_weight: Any) -> None:
    weight = tiles_of(native, random_weight([("q4_1", 40), ("bfloat16", 9)], 64))
    run, x, bias = on_tensors(float_product_kernel(native.library)), normal(1100, 64), normal(49)
    whole = run(x, weight, bias)
    for first in (0, 515, 516, 1032, 1099):
        assert torch.equal(whole[first : first + 1], run(x[first : first + 1], weight, bias))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("tokens", [2, 30])
def test_parts_bias_and_element_types(
    native: SimpleNamespace, random_weight: Any, kind: torch.dtype, tokens: int
) -> None:
    weight = random_weight([("q4_k", 21), ("bfloat16", 7), ("float32", 1)], 512)
    run, x, bias = (
        on_tensors(float_product_kernel(native.library)),
        normal(tokens, 3, 512).to(kind),
        normal(29, seed=1).to(kind),
    )
    got = run(x, tiles_of(native, weight), bias)
    assert got.dtype is kind
    assert got.shape == (tokens, 3, 29)
    wide = run(x.float(), tiles_of(native, weight))
    assert torch.equal(got, (wide + bias.float()).to(kind))
    pieces = [run(x.float(), tiles_of(native, TorchWeight((p.rows, 512), (p,)))) for p in weight.parts]
    assert torch.equal(torch.cat(pieces, -1), wide)


def test_strided_and_empty_inputs(native: SimpleNamespace, random_weight: Any) -> None:
    weight, run = tiles_of(native, random_weight([("q8_0", 20)], 64)), on_tensors(float_product_kernel(native.library))
    x = normal(20, 200)
    for tokens in (3, 20):
        assert torch.equal(run(x[:tokens, 7:71], weight), run(x[:tokens, 7:71].contiguous(), weight))
    assert run(x[:0, :64], weight).shape == (0, 20)
    with pytest.raises(DeviceError, match="x has 65 columns, the weight has 64"):
        run(x[:, :65], weight)


@pytest.fixture(params=[1.0, 1e-20, 1e-38], ids=["plain", "small", "subnormal"])
def scaled(request: pytest.FixtureRequest) -> Callable[[torch.Tensor], torch.Tensor]:
    """Makes some values so small that products of them are no normal numbers."""

    def scale(x: torch.Tensor) -> torch.Tensor:
        factor: float = request.param
        return torch.where(torch.arange(x.shape[1]) % 3 == 1, x * factor, x)

    return scale


@pytest.mark.parametrize("where", ["weight", "x", "both"])
def test_bfloat16_has_the_same_bits_on_every_machine(
    native: SimpleNamespace, portable_build: SimpleNamespace, scaled: Any, where: str
) -> None:
    """Products of two such values are exact in float32, so it does not matter whether sums are fused or subnormal."""
    w, x = normal(50, 768), normal(30, 768, seed=1)
    w = scaled(w) if where != "x" else w
    x = (scaled(x) if where != "weight" else x).bfloat16()
    made = [
        on_tensors(float_product_kernel(b.library))(x.float(), tiles_of(b, halves(w))) for b in (native, portable_build)
    ]
    assert torch.equal(*made)
    narrow = on_tensors(float_product_kernel(native.library))(x, tiles_of(native, halves(w)))
    assert torch.equal(narrow, made[0].bfloat16())


@pytest.mark.parametrize("tokens", [1, 30])
def test_nothing_is_lost_below_the_normal_numbers(native: SimpleNamespace, tokens: int) -> None:
    x, w = torch.full((tokens, 64), 2.0**-70, dtype=torch.bfloat16), torch.full((16, 64), 2.0**-70)
    for rounded in (False, True):
        got = on_tensors(float_product_kernel(native.library, rounded=rounded))(x.float(), tiles_of(native, halves(w)))
        assert (got == 2.0**-134).all()


@pytest.mark.parametrize("name", ["bfloat16", "q4_0"])
@pytest.mark.parametrize("tokens", [1, 9, 25])
def test_rounded_activations_are_those_of_bfloat16(
    native: SimpleNamespace, random_weight: Any, name: str, tokens: int
) -> None:
    weight, x = tiles_of(native, random_weight([(name, 33)], 256)), normal(tokens, 256)
    rounded, plain = (
        on_tensors(float_product_kernel(native.library, rounded=True)),
        on_tensors(float_product_kernel(native.library)),
    )
    assert torch.equal(rounded(x, weight), plain(x.bfloat16().float(), weight))
    assert not torch.equal(rounded(x, weight), plain(x, weight))


@pytest.mark.parametrize("tokens", [2, 15])
def test_infinities_and_nan_reach_only_their_row(native: SimpleNamespace, random_weight: Any, tokens: int) -> None:
    weight, run = (
        tiles_of(native, random_weight([("bfloat16", 40)], 64)),
        on_tensors(float_product_kernel(native.library)),
    )
    x = normal(tokens, 64)
    before = run(x, weight)
    x[1, 3], x[0, 7] = float("nan"), float("inf")
    for kind in (torch.float32, torch.bfloat16):
        after = run(x.to(kind), weight)
        assert after[1].isnan().all()
        assert not after[0].isfinite().any()
    assert torch.equal(run(x, weight)[2:], before[2:])


@pytest.mark.parametrize("name", FLOATS)
def test_rows_of_floats_are_read_as_they_were(
    build: SimpleNamespace, random_weight: Any, exact: Any, name: str
) -> None:
    weight = random_weight([(name, 37), ("q8_0", 5)], 96)
    ids = torch.tensor([[0, 41, 36], [37, 17, 0]], dtype=torch.int32)
    rows = on_tensors(tile_embedding_kernel(build.library))(ids, tiles_of(build, weight), dtype=dtype("float32"))
    np.testing.assert_array_equal(rows.numpy(), exact(weight)[ids.numpy()].astype(np.float32))
