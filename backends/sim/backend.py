"""Opens simulated devices by the name of their profile."""

from __future__ import annotations

from typing import ClassVar

from xinheng.core.errors import DeviceError, nearest
from xinheng.core.hal import Backend, Device, DeviceInfo, DeviceOptions, DeviceSpec

from .profiles import PROFILES
from .rogues import ROGUES


class SimBackend(Backend):
    """Devices such as `sim:exact`. Those with a fault are opened by name and not listed."""

    name: ClassVar[str] = "sim"
    api_version: ClassVar[tuple[int, int]] = (1, 0)
    priority: ClassVar[int] = -100

    def probe(self) -> list[DeviceInfo]:
        return [DeviceInfo(f"sim:{word}", profile.text, emulated=True) for word, profile in PROFILES.items()]

    def open(self, spec: DeviceSpec, options: DeviceOptions | None = None) -> Device:
        word, known = spec.word or "exact", {**PROFILES, **ROGUES}
        if word not in known or spec.ordinals or spec.runtime is not None:
            listed = f"known: {', '.join(PROFILES)}, and with a fault each {', '.join(ROGUES)}"
            raise DeviceError(f"device {spec} does not exist{nearest(word, list(known))}; {listed}")
        profile = known[word]
        return profile.make(f"sim:{word}", profile.text)
