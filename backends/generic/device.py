"""Opens torch devices that are described by a row of the table of vendors, and finds out what they can do."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from xinheng.core.errors import DeviceError
from xinheng.core.hal import ANY_ORDER, Arithmetic, Capabilities, DeviceInfo, DeviceOptions, DeviceSpec

from .._torch import AcceleratorDevice
from .._torch.emulation import EmulatedChip, install
from .._torch.handles import DTYPES
from .._vendors import Vendor, maker_of

ARITHMETIC = Arithmetic(ANY_ORDER, determinism="D1")
"""What can be promised for a library that nobody here has seen."""
EMULATION = Arithmetic(ANY_ORDER, determinism="D4")
"""The emulation adds in float64, so that rows do not depend on each other."""


class GenericDevice(AcceleratorDevice):
    """A card that plain torch drives; what it can hold and compute is tried when it is opened."""

    def __init__(
        self,
        spec: str,
        device: torch.device,
        row: Vendor,
        options: DeviceOptions,
        arithmetic: Arithmetic = ARITHMETIC,
    ) -> None:
        kinds = frozenset(kind for kind, held in DTYPES.items() if _computes(device, held))
        preferred = "bfloat16" if any(kind.name == "bfloat16" for kind in kinds) else "float16"
        capabilities = Capabilities(
            kinds, preferred_dtype=preferred, arithmetic=arithmetic, cache_schemes=frozenset({"int8"})
        )
        software = f"{row.package} of {row.vendor}" if row.package else f"the build of torch that {row.vendor} ships"
        super().__init__(
            spec, _name(device, row), device, capabilities, row.collective, row.graph, software, options.graph
        )


def cards(name: str, row: Vendor) -> list[DeviceInfo]:
    """The cards of a vendor whose software is installed; an empty list if it does not work."""
    runtime = _runtime(row)
    if runtime is None:
        return []
    found = []
    for index in range(runtime.device_count()):
        told = _name(torch.device(row.type, index), row)
        if not row.shared or maker_of(told, torch.version.hip is not None) == name:
            memory = _memory(runtime, index)
            found.append(DeviceInfo(f"{name}:{index}", f"{row.vendor} {told}", memory, f"torch {torch.__version__}"))
    return found


def open_card(spec: DeviceSpec, row: Vendor, options: DeviceOptions) -> GenericDevice:
    """Open a card.

    Raises:
        DeviceError: the vendor's software does not work, there is no such card, or the card is another vendor's.
    """
    index = spec.ordinals[0] if spec.ordinals else 0
    runtime = _runtime(row)
    if runtime is None:
        package = row.package or "this build of torch"
        raise DeviceError(f"device {spec} cannot be opened: {package} finds no card; check the driver with {row.tool}")
    count = runtime.device_count()
    if len(spec.ordinals) > 1 or index >= count:
        hidden = ", ".join(row.visible)
        raise DeviceError(f"device {spec} does not exist: {count} cards are visible ({hidden}), of which one is opened")
    device = torch.device(row.type, index)
    if row.shared:
        maker = maker_of(_name(device, row), torch.version.hip is not None)
        if maker not in (None, spec.backend):
            raise DeviceError(f"device {spec}: the card {_name(device, row)!r} is one of {maker}; open {maker}:{index}")
    return GenericDevice(str(spec), device, row, options)


def open_emulated(spec: DeviceSpec, row: Vendor, options: DeviceOptions) -> GenericDevice:
    """Open a device written in Python under the vendor's name in torch; DeviceError if that name is torch's own."""
    if row.shared or row.type == "xpu":
        raise DeviceError(f"device {spec} cannot be emulated: {row.type!r} is a name of torch itself")
    device = install(row.type, EmulatedChip(f"emulated {row.vendor} card"), row.graph or "Graph")
    return GenericDevice(str(spec), device, row, options, EMULATION)


def _runtime(row: Vendor) -> Any:
    """The vendor's module below torch, None if it is not there or has no device."""
    try:
        if row.package:
            importlib.import_module(row.package)
        runtime = getattr(torch, row.type)
        return runtime if runtime.is_available() else None
    except (ImportError, OSError, RuntimeError, AttributeError):
        return None


def _name(device: torch.device, row: Vendor) -> str:
    told = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(told(device)) if told else row.vendor


def _memory(runtime: Any, index: int) -> int | None:
    """The size of a card's memory in bytes, if its software tells."""
    tell = getattr(runtime, "get_device_properties", None)
    return int(tell(index).total_memory) if tell else None


def _computes(device: torch.device, kind: torch.dtype) -> bool:
    """Whether a tensor of an element type can be brought to a device and be read there."""
    try:
        bits = torch.zeros(8, dtype=torch.uint8).view(kind).to(device)
        return bool((bits == bits).cpu().all()) if not str(kind).startswith("torch.float8") else bits.numel() > 0
    except (RuntimeError, TypeError, NotImplementedError):
        return False
