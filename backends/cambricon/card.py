"""Opens a real card; the vendor's packages are imported here and nowhere else."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceOptions, DeviceSpec

from .chips import chip_of
from .device import CambriconDevice


def open_card(spec: DeviceSpec, options: DeviceOptions) -> CambriconDevice:
    """Import torch_mlu and open a card by the number that it has behind MLU_VISIBLE_DEVICES.

    Raises:
        DeviceError: a package cannot be imported, or there is no such card.
    """
    _imported("torch_mlu", spec)
    library = None
    if spec.runtime != "torch" and find_spec("torch_mlu_ops") is not None:
        library = _imported("torch_mlu_ops", spec)
    runtime: Any = torch.get_device_module("mlu")
    index, count = (spec.ordinals or (0,))[0], int(runtime.device_count())
    if index >= count:
        raise DeviceError(
            f"device {spec} does not exist: torch_mlu sees {count} cards; check cnmon and MLU_VISIBLE_DEVICES"
        )
    properties = runtime.get_device_properties(index)
    chip = chip_of(str(properties.name), int(properties.major))
    return CambriconDevice(
        f"cambricon:{index}", str(properties.name), torch.device("mlu", index), chip, library, options
    )


def _imported(package: str, spec: DeviceSpec) -> Any:
    try:
        return import_module(package)
    except (ImportError, OSError, RuntimeError) as error:  # an incomplete Neuware shows as any of them
        raise DeviceError(
            f"device {spec}: {package} is installed and cannot be imported: {error}; reinstall it with its Neuware"
        ) from error
