"""How many threads the processor is used with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from xinheng.backends.cpu.device import CPUDevice
from xinheng.core.hal import DeviceOptions


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Threads belong to the process: opening a device sets those of all."""
    yield
    CPUDevice(DeviceOptions())


def test_processes_of_one_host_share_its_threads() -> None:
    alone = CPUDevice(DeviceOptions()).threads
    assert CPUDevice(DeviceOptions(sharers=2)).threads == max(1, alone // 2)
    assert CPUDevice(DeviceOptions(sharers=1000)).threads == 1
    assert torch.get_num_threads() == 1
    assert CPUDevice(DeviceOptions(threads=3, sharers=2)).threads == 3
