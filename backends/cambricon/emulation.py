"""Emulated MLU cards: the device class and kernels of cards, over a torch device written in Python and doubles.

Emulated are element types, functions of two releases of torch_mlu_ops, their arguments, layouts and limits. What is
not: the vendor's numerics, the cut of int64 to int32, speed, and errors that come late.
"""

from __future__ import annotations

import sys

import torch

from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceOptions

from .._torch.emulation import EmulatedChip, install
from .chips import CHIPS
from .device import CambriconDevice
from .doubles import library_of


def open_emulation(spec: str, word: str, release: str, options: DeviceOptions) -> CambriconDevice:
    """The emulation of a generation with a release of torch_mlu_ops, or with none ("torch").

    Raises:
        DeviceError: this process emulates devices of another vendor, or has real cards.
    """
    chip = next(chip for chip in CHIPS if chip.word == word)
    if "torch_mlu" in sys.modules:
        raise DeviceError(
            f"{spec} cannot be emulated in a process that has imported torch_mlu; use another process, or set "
            'engine.runner = "subprocess"'
        )
    lacking = frozenset() if chip.bfloat16 else frozenset({torch.bfloat16})
    card = EmulatedChip(chip.name, chip.memory, chip.major, 0, lacking=lacking)
    device = install("mlu", card, "MLUGraph")
    name = f"emulated {chip.name} ({release})"
    return CambriconDevice(spec, name, device, chip, library_of(release, chip), options, determinism="D4")
