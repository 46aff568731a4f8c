"""Ascend devices of each generation over doubles of the vendor's operators, with tensors in host memory.

The emulations proper (`ascend:910b`) put the same kernels and doubles behind a device of torch written in Python. One
process can hold one of those, so kernels are tested without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from xinheng.backends.ascend import doubles
from xinheng.backends.ascend.chips import chip_called
from xinheng.backends.ascend.torch_npu import AscendDevice
from xinheng.core.hal import DeviceOptions, Event, HostCopy, Numerics
from xinheng.core.hal.device import Copied, Done


class HostedDevice(AscendDevice):
    """A device whose queue is the program itself."""

    def event(self) -> Event:
        return Done()

    def copy_async(self, buffer: Any) -> HostCopy:
        return Copied(self.download(buffer))


def device_of(word: str, mode: str = "strict") -> HostedDevice:
    """A device of a generation, whose doubles stand for it from now on."""
    chip = chip_called(word)
    doubles.install(chip)
    plain = replace(chip, graphs=False)  # the host has none
    return HostedDevice(
        f"ascend:{word}", chip.soc, torch.device("cpu"), plain, DeviceOptions(numerics=Numerics(mode)), "D4"
    )


DEVICES = {word: device_of(word) for word in ("910b", "310p", "910a")}
FAST = {word: device_of(word, "fast") for word in ("910b", "310p")}
"""Devices that may round activations to int8."""


def use(word: str, mode: str = "strict") -> HostedDevice:
    """The device of a generation, after telling the doubles which it is."""
    doubles.emulate(chip_called(word))
    return (FAST if mode == "fast" else DEVICES)[word]
