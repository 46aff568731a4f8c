"""Emulated Ascend devices: the device class and kernels of cards, over a torch device written in Python and doubles.

What is emulated is what the vendor documents: element types, operators of a generation, their arguments, layouts and
limits, and lists frozen in captured graphs. What is not: the vendor's numerics, speed, and errors that come late.
"""

from __future__ import annotations

import sys

import torch

from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceOptions

from .._torch.emulation import EmulatedChip, install
from . import doubles
from .chips import Chip, chip_called
from .torch_npu import AscendDevice

MEMORY = {"310p": 24 << 30, "910a": 32 << 30, "910b": 64 << 30}
"""Bytes of a card of each generation."""


def open_emulation(word: str, options: DeviceOptions) -> AscendDevice:
    """The emulation of a generation.

    Raises:
        DeviceError: this process emulates devices of another vendor, or has real cards.
    """
    chip = chip_called(word)
    if "torch_npu" in sys.modules:
        raise DeviceError(
            f"ascend:{word} cannot be emulated in a process that has imported torch_npu; use another process, or set "
            'engine.runner = "subprocess"'
        )
    device = install("npu", _emulated(chip), "NPUGraph")
    doubles.add_tasks(torch.get_device_module("npu"))
    doubles.install(chip)
    doubles.stand_for(device, chip)
    name = f"emulated {chip.soc} ({chip.name})"
    return AscendDevice(f"ascend:{word}", name, device, chip, options, determinism="D4")


def _emulated(chip: Chip) -> EmulatedChip:
    lacking = frozenset() if chip.bfloat16 else frozenset({torch.bfloat16})
    return EmulatedChip(chip.soc, MEMORY[chip.word], lacking=lacking, hosted=doubles.HOSTED)
