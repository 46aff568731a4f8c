"""Weights as planes of codes and scales have the values of their scheme, to the last bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends._torch.plane_part import PlanePart, plane_part
from xinheng.backends._torch.planes import SCHEMES
from xinheng.core.hal import WeightPart
from xinheng.core.schemes import scheme

COLUMNS, ROWS = 512, 7


def upload(array: Any, kind: Any) -> torch.Tensor:
    if kind.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def part_of(name: str, seed: int = 0) -> tuple[PlanePart, Any]:
    rng, coding = np.random.default_rng(seed), scheme(name)
    if coding.pack is not None:
        data = coding.pack(rng.standard_normal((ROWS, COLUMNS)).astype(np.float32))
    else:
        data = rng.integers(0, 256, (ROWS, coding.row_bytes(COLUMNS)), dtype=np.uint8)
    return plane_part(WeightPart(name, ROWS, lambda: data), COLUMNS, upload), partial(coding.unpack, data)


@pytest.mark.parametrize("name", sorted(SCHEMES))
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
def test_values(name: str, kind: torch.dtype) -> None:
    part, unpack = part_of(name)
    got = part.unpack(0, ROWS, kind).numpy()
    np.testing.assert_array_equal(got, unpack(got.dtype))
    assert not part.dense and part.nbytes < ROWS * COLUMNS * 2


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "int4_g128_bf16", "int8_row"])
def test_some_rows(name: str) -> None:
    part, unpack = part_of(name)
    want = torch.from_numpy(unpack())
    assert torch.equal(part.slice(2, 5).unpack(1, 3, torch.float32), want[3:5])
    index = torch.tensor([6, 0, 6])
    assert torch.equal(part.take(index, torch.float32), want[index])


def test_dense_rows_stay_as_they_are() -> None:
    values = np.arange(12, dtype=np.float16).reshape(3, 4)
    part = plane_part(WeightPart("float16", 3, lambda: values.view(np.uint8)), 4, upload)
    assert part.dense and torch.equal(part.data, torch.from_numpy(values))
