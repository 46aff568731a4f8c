"""What a report says about the device it is about, collected by the process that has opened it."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import asdict
from importlib import metadata
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from xinheng.core.certificate import Mode
from xinheng.core.hal import Arithmetic, Device, Numerics
from xinheng.core.plugins import PluginManager

from ..determinism import promised
from ..fingerprints.fingerprint import Fingerprint
from ..report.model import DeviceHeader, Modes


class About(BaseModel):
    """An opened device.

    Attributes:
        header, modes: as reports have them.
        determinism: the level that it promises.
        host: it computes on the cores of this host, since its memory is the host's.
    """

    model_config = ConfigDict(frozen=True)

    header: DeviceHeader
    modes: Modes
    determinism: str
    host: bool

    @classmethod
    def of(cls, device: Device, manager: PluginManager, numerics: Numerics) -> Self:
        """What `device`, opened through `manager` to compute as `numerics` says, tells about itself."""
        identity, known = manager.identify(device), device.capabilities
        header = DeviceHeader(
            **identity.model_dump(),
            packages=_packages(identity.plugin),
            platform=f"{platform.platform()}, python {platform.python_version()}",
            dtypes=tuple(sorted(kind.name for kind in known.dtypes)),
        )
        modes = Modes(**Mode.of(device, numerics).model_dump(), arithmetic=_plain(known.arithmetic))
        return cls(header=header, modes=modes, determinism=promised(device), host=known.unified_memory)


class Seen(BaseModel):
    """What crafted inputs tell of a device: its fingerprint and where that contradicts it; or why there is none."""

    model_config = ConfigDict(frozen=True)

    fingerprint: Fingerprint | None = None
    contradictions: tuple[str, ...] = ()
    note: str = ""


def _plain(arithmetic: Arithmetic | None) -> dict[str, Any]:
    """The declaration field by field, dtypes by their names."""
    if arithmetic is None:
        return {}
    names = {name: str(kind) for name in ("accumulate", "partial", "inputs") if (kind := getattr(arithmetic, name))}
    return {
        **asdict(arithmetic),
        **dict.fromkeys(("partial", "inputs")),
        **names,
        "programs": dict(arithmetic.programs),
    }


def _packages(plugin: str) -> dict[str, str]:
    """Versions of what this program and the plugin say they need and this process has imported."""
    found: dict[str, str] = {}
    for owner in dict.fromkeys(("xinheng", plugin)):
        try:
            wanted = metadata.requires(owner) if owner else []
        except metadata.PackageNotFoundError:
            continue
        for requirement in wanted or []:
            match = re.match(r"[\w.-]+", requirement)
            if match and match[0].replace("-", "_") in sys.modules and match[0] != "xinheng":
                found[match[0]] = metadata.version(match[0])
    return dict(sorted(found.items()))
