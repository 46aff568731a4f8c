"""Weights of several parts: those of one scheme lie in one piece, and all values are those of the schemes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends._torch import TorchDevice, TorchWeight
from xinheng.backends._torch.handles import DTYPES
from xinheng.backends._torch.preparation import prepared
from xinheng.core.hal import Capabilities, KernelRegistry, MemoryStats, WeightPart, WeightSource
from xinheng.core.schemes import scheme


class Host(TorchDevice):
    """Torch on the processor, with no kernels."""

    kernels = KernelRegistry()

    def __init__(self) -> None:
        super().__init__("host", "host", torch.device("cpu"), Capabilities(frozenset(DTYPES)))

    def memory(self) -> MemoryStats:
        return MemoryStats(1, 1)


def source(shape: tuple[int, ...], *parts: tuple[str, int]) -> WeightSource:
    """Normal numbers in parts of (scheme, rows)."""
    random, made = np.random.default_rng(7), []
    for coding, rows in parts:
        pack = scheme(coding).pack
        assert pack is not None
        made.append(WeightPart(coding, rows, partial(np.asarray, pack(random.normal(size=(rows, shape[-1]))))))
    return WeightSource("weight", shape, tuple(made))


@pytest.mark.parametrize("coding", ["float32", "bfloat16", "q4_0", "q8_0", "int4_g32", "int8_row", "float8_e4m3_row"])
def test_a_stack_of_one_scheme_is_one_piece(coding: str) -> None:
    given = source((3, 5, 64), *[(coding, 5)] * 3)
    made = prepared(Host(), given)
    assert isinstance(made, TorchWeight)
    (part,) = made.parts
    assert (part.scheme, part.rows) == (coding, 15)
    np.testing.assert_array_equal(made.values(torch.float32).numpy(), given.unpack())
    np.testing.assert_array_equal(made.groups[1].values(torch.float32).numpy(), given.unpack()[1])


def test_neighbours_of_one_scheme_are_joined_and_others_keep_their_place() -> None:
    given = source((13, 64), ("q8_0", 4), ("q8_0", 2), ("q4_0", 3), ("q8_0", 4))
    made: Any = prepared(Host(), given)
    assert [(part.scheme, part.rows) for part in made.parts] == [("q8_0", 6), ("q4_0", 3), ("q8_0", 4)]
    np.testing.assert_array_equal(made.values(torch.float32).numpy(), given.unpack())
    assert made.layout == "planes of codes and scales"
    assert prepared(Host(), source((2, 32), ("float16", 2))).layout == "as stored"
