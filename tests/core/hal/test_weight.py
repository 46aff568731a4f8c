"""Weight sources are lazy, sliceable on block borders, and keep the scheme of every row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xinheng.core.errors import ModelError
from xinheng.core.hal import WeightPart, WeightSource
from xinheng.core.schemes import scheme

VALUES = np.random.default_rng(3).normal(size=(9, 64)).astype(np.float32)


def part(values: Any, name: str, loads: list[str] | None = None) -> WeightPart:
    pack = scheme(name).pack
    assert pack is not None
    packed = pack(values)

    def load() -> Any:
        if loads is not None:
            loads.append(name)
        return packed

    return WeightPart(name, len(values), load)


def mixed(loads: list[str] | None = None) -> WeightSource:
    parts = (part(VALUES[:4], "q8_0", loads), part(VALUES[4:7], "float16", loads), part(VALUES[7:], "q8_0", loads))
    return WeightSource("w", (9, 64), parts)


def test_types_and_sizes() -> None:
    source = mixed()
    assert str(source.type) == "weight<q8_0:4+float16:3+q8_0:2>[9, 64]"
    assert source.nbytes == 6 * 2 * 34 + 3 * 128
    assert str(WeightSource("w", (4, 64), source.parts[:1]).type) == "weight<q8_0>[4, 64]"


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2), st.integers(0, 2))
def test_slices_are_slices_of_the_values(a: int, b: int, c: int, d: int) -> None:
    (start, stop), (left, right) = sorted((a, b)), sorted((c, d))
    if start == stop or left == right:
        return
    piece = mixed().rows(start, stop).columns(32 * left, 32 * right)
    assert piece.shape == (stop - start, 32 * (right - left))
    assert sum(p.rows for p in piece.parts) == stop - start
    np.testing.assert_array_equal(piece.unpack(), mixed().unpack()[start:stop, 32 * left : 32 * right])
    np.testing.assert_array_equal(piece.rows(0, 1).unpack(), piece.unpack()[:1])


def test_nothing_is_read_before_it_is_needed() -> None:
    loads: list[str] = []
    piece = WeightSource.concatenate("both", [mixed(loads).rows(0, 2), mixed(loads).rows(5, 6)])
    assert loads == []
    assert piece.shape == (3, 64)
    np.testing.assert_array_equal(piece.unpack(np.float64), mixed().unpack(np.float64)[[0, 1, 5]])
    assert loads == ["q8_0", "float16"]


def test_impossible_slices() -> None:
    with pytest.raises(
        ModelError, match="columns 0:16 cut a block of 32 values of scheme 'q8_0'; slice at multiples of 32"
    ):
        mixed().columns(0, 16)
    assert mixed().rows(4, 7).columns(3, 5).shape == (3, 2)
    for start, stop in ((0, 10), (-1, 3), (5, 4)):
        with pytest.raises(ModelError, match=f"weight 'w' has 9 rows, not {start}:{stop}"):
            mixed().rows(start, stop)
    with pytest.raises(ModelError, match="weight 'w' has 64 columns, not 0:96"):
        mixed().columns(0, 96)
    with pytest.raises(ModelError, match=r"weight 'both': cannot stack weights of \[32, 64\] columns"):
        WeightSource.concatenate("both", [mixed(), mixed().columns(0, 32)])
