"""The processor measures its own limits: plausible numbers, and what a kernel does stays below them."""

from __future__ import annotations

import pytest
import torch

from xinheng.backends.cpu.jit import NativeUnavailable, load
from xinheng.backends.cpu.kernels import Library
from xinheng.backends.cpu.limits import PIECE, measure_limits
from xinheng.core.hal import MemoryStats


@pytest.fixture(scope="module")
def library() -> Library:
    try:
        return Library(load().library)
    except NativeUnavailable as error:
        pytest.skip(str(error))


def test_limits_have_the_working_set_that_was_asked_for_as_far_as_memory_allows(library: Library) -> None:
    plenty = MemoryStats(1 << 34, 1 << 33)
    assert measure_limits(library, plenty, 3 * PIECE + 5).working_set == 3 * PIECE
    assert measure_limits(library, plenty, 1).working_set == PIECE
    assert measure_limits(library, MemoryStats(1 << 24, 1 << 24), 1 << 30).working_set == 1 << 22


def test_rates_are_of_work_that_was_really_done(library: Library) -> None:
    found = measure_limits(library, MemoryStats(1 << 34, 1 << 33), PIECE)
    assert 1e8 < found.bandwidth < 1e13
    assert {"float32", "int8"} <= set(found.rates) and all(1e8 < rate < 1e15 for rate in found.rates.values())


def test_a_longer_run_takes_longer(library: Library) -> None:
    """Loops that the compiler removed would take no time at any length: a rate would grow with the steps."""
    for measure in (library.measure_float32, library.measure_int8):
        short, long = (max(measure(steps) for _ in range(5)) for steps in (20_000, 400_000))
        assert long < 10 * short


def test_reading_less_than_a_piece_reads_nothing(library: Library) -> None:
    data = torch.zeros(PIECE, dtype=torch.uint8)
    assert library.measure_read(data.data_ptr(), PIECE - 1) == 0.0
