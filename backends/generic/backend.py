"""Finds and opens the torch devices of the table of vendors: musa:0, gcu:0, hygon:0 and so on."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import ClassVar

from xinheng.core.errors import DeviceError
from xinheng.core.hal import Backend, Device, DeviceInfo, DeviceOptions, DeviceSpec, Finding

from .._vendors import Vendor, vendors

EMULATED = "emulated"
"""The word that opens a device written in Python under the name of a vendor's."""


class GenericBackend(Backend):
    """Devices with a torch of their vendor and no plugin; `NAME:emulated` is one without hardware."""

    name: ClassVar[str] = "generic"
    api_version: ClassVar[tuple[int, int]] = (1, 0)
    priority: ClassVar[int] = 40

    def names(self) -> tuple[str, ...]:
        return tuple(vendors())

    def probe(self) -> list[DeviceInfo]:
        """The cards of the vendors whose package is installed; no package is imported for those that are not."""
        found = []
        for name, row in vendors().items():
            if _installed(row):
                from .device import cards

                found += cards(name, row)
        return found

    def open(self, spec: DeviceSpec, options: DeviceOptions | None = None) -> Device:
        row = vendors().get(spec.backend)
        if row is None:
            raise DeviceError(f"device {spec} does not exist; the table of vendors has {', '.join(vendors())}")
        if find_spec("torch") is None:
            raise DeviceError(f"device {spec} needs torch, and {_torch_of(row)}")
        if spec.runtime not in (None, "torch"):
            raise DeviceError(f"device {spec}: {spec.backend} runs on torch only")
        from .device import open_card, open_emulated

        if spec.word is None:
            if not _installed(row):
                finding = _missing(spec.backend, row)
                raise DeviceError(f"device {spec} cannot be opened: {finding.text}; {finding.remedy}")
            return open_card(spec, row, options or DeviceOptions())
        if spec.word != EMULATED:
            raise DeviceError(f"device {spec} does not exist; there are numbers, and the word {EMULATED}")
        return open_emulated(spec, row, options or DeviceOptions())

    def diagnose(self) -> list[Finding]:
        return [_missing(name, row) for name, row in vendors().items() if not _installed(row)]


def _installed(row: Vendor) -> bool:
    """Whether the vendor's software is there: its package or, where it ships a torch of its own, its tool."""
    found = find_spec(row.package) is not None if row.package else row.tool is not None and shutil.which(row.tool)
    return bool(found) and find_spec("torch") is not None


def _torch_of(row: Vendor) -> str:
    """What has to be installed."""
    return f"{row.package} from {row.vendor}" if row.package else f"the build of torch that {row.vendor} ships"


def _missing(name: str, row: Vendor) -> Finding:
    what = row.package or f"the driver with {row.tool}"
    hidden = f" (cards can be hidden by {', '.join(row.visible)})" if row.visible else ""
    chinese = f"安装驱动与 {row.vendor} 提供的 {row.package or 'torch'}{hidden}"
    return Finding(
        f"generic.{name}-missing",
        f"{name} ({row.vendor}): {what} is not installed",
        f"install the driver and {_torch_of(row)}{hidden}",
        (f"{name}（{row.vendor}）：没有安装 {row.package or row.tool}", chinese),
    )
