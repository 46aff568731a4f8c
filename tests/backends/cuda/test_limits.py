"""Limits of a card follow from the best of the times its events tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from xinheng.backends.cuda.limits import measured_limits
from xinheng.core.hal import MemoryStats

TIMES = [9.0, 4.0, 50.0, 2.0, 8.0]
"""Milliseconds that events tell, over and over."""


class Event:
    """An event between which and the next some time of the list passes."""

    made = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.recorded = False

    def record(self) -> None:
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded

    def elapsed_time(self, end: Any) -> float:
        assert self.recorded and end.recorded
        Event.made += 1
        return TIMES[Event.made % len(TIMES)]


def test_the_best_time_counts() -> None:
    runtime = SimpleNamespace(Event=Event)
    found = measured_limits(runtime, torch.device("cpu"), MemoryStats(1 << 30, 1 << 30), 1 << 20, product=16)
    assert found is not None
    assert found.working_set == 1 << 20
    assert found.bandwidth == pytest.approx((1 << 20) / 2e-3)
    assert found.rates == pytest.approx(dict.fromkeys(("float32", "float16", "bfloat16"), 2 * 16**3 / 2e-3))


def test_a_working_set_needs_room() -> None:
    assert measured_limits(None, torch.device("cpu"), MemoryStats(1 << 30, 1 << 10), 1 << 20) is None
