"""Opening a card: the vendor's package is imported here and nowhere else, and only to open one."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import torch

from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceOptions

from ..chips import CHIPS, Chip, chip_of, chip_of_version
from .device import AscendDevice


def open_card(index: int, physical: int, options: DeviceOptions) -> AscendDevice:
    """The card a process calls npu:`index`, the machine's card `physical`.

    Raises:
        DeviceError: the package cannot be imported or sees no such card, or the chip is not known; with the remedy.
    """
    spec = f"ascend:{index}"
    try:
        importlib.import_module("torch_npu")
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(
            f"device {spec}: torch_npu is installed and cannot be imported: {error}; source CANN's set_env.sh in this "
            "shell and see `xinheng doctor ascend`"
        ) from error
    npu = _npu()
    if not npu.is_available():
        raise DeviceError(f"device {spec}: torch_npu finds no card; see `npu-smi info` and `xinheng doctor ascend`")
    if index >= npu.device_count():
        raise DeviceError(f"device {spec} does not exist; torch_npu sees {npu.device_count()} cards")
    npu.set_device(index)
    name = str(npu.get_device_name(index))
    # no operator of this backend needs a just-in-time compiled kernel, which takes seconds for each new shape
    npu.set_compile_mode(jit_compile=False)
    device = torch.device("npu", index)
    return AscendDevice(spec, f"{name} (card {physical})", device, identified(name), options, determinism="D1")


def identified(name: str) -> Chip:
    """The generation of an opened card: by its name, or by the number that the package has for it; then by behaviour.

    Raises:
        DeviceError: neither is known.
    """
    chip = chip_of(name) or chip_of_version(_version())
    if chip is None:
        known = ", ".join(f"{chip.name} ({chip.soc})" for chip in CHIPS)
        raise DeviceError(f"Ascend chip {name!r} is not known to this release; known: {known}")
    # what the card does counts more than what a table says
    return replace(chip, bfloat16=bool(_npu().is_bf16_supported()))


def _version() -> int:
    """The number that the package gives to the SoC; -1 if it has none."""
    tell = getattr(_npu().utils, "get_soc_version", None)
    return -1 if tell is None else int(tell())


def _npu() -> Any:
    """The module that the package puts into torch."""
    return torch.get_device_module("npu")
