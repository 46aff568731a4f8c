"""How many threads the processor is used with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from xinheng.backends.cpu.device import CPUDevice
from xinheng.core.hal import DeviceOptions


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Threads belong to the process: opening a device sets those of all."""
    yield
    CPUDevice(DeviceOptions()).kernels.ops()


def test_processes_of_one_host_share_its_threads() -> None:
    alone = CPUDevice(DeviceOptions()).threads
    assert CPUDevice(DeviceOptions(sharers=2)).threads == max(1, alone // 2)
    many = CPUDevice(DeviceOptions(sharers=1000))
    many.kernels.ops()  # imports torch's
    assert many.threads == 1
    assert torch.get_num_threads() == 1
    assert CPUDevice(DeviceOptions(threads=3, sharers=2)).threads == 3


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes are not tied to processors here")
def test_a_process_on_one_processor_uses_one_thread() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "import torch\n"
        "from xinheng.backends.cpu.device import CPUDevice\n"
        "from xinheng.core.hal import DeviceOptions\n"
        "device = CPUDevice(DeviceOptions())\n"
        "device.kernels.ops()\n"
        "print(device.threads, torch.get_num_threads())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert told.stdout.split() == ["1", "1"]
