"""Cambricon devices over doubles of torch_mlu_ops, with tensors in host memory.

The emulations proper (`cambricon:mlu590`) put the same kernels and doubles behind a device of torch written in Python.
One process can hold one name of those, so kernels are tested without it.
"""

from __future__ import annotations

from typing import Any

import torch

from xinheng.backends.cambricon.chips import CHIPS
from xinheng.backends.cambricon.device import CambriconDevice
from xinheng.backends.cambricon.doubles import library_of
from xinheng.core.hal import DeviceOptions, Event, HostCopy
from xinheng.core.hal.device import Copied, Done


class HostedDevice(CambriconDevice):
    """A device whose queue is the program itself, and that captures nothing."""

    def __init__(self, word: str, release: str) -> None:
        chip = next(chip for chip in CHIPS if chip.word == word)
        library = library_of(release, chip, lambda function: function)
        spec = f"cambricon:{word}@{release}"
        options = DeviceOptions(graph=False)
        super().__init__(spec, chip.name, torch.device("cpu"), chip, library, options, determinism="D4")

    def event(self) -> Event:
        return Done()

    def copy_async(self, buffer: Any) -> HostCopy:
        return Copied(self.download(buffer))


DEVICES = {
    device.spec.removeprefix("cambricon:"): device
    for device in (
        HostedDevice("mlu590", "tmo_1_12"),
        HostedDevice("mlu590", "tmo_1_3"),
        HostedDevice("mlu370", "tmo_1_3"),
        HostedDevice("mlu590", "torch"),
    )
}
