"""Opens simulated devices by the name of their profile."""

from __future__ import annotations

from typing import ClassVar

from xinheng.core.errors import DeviceError, nearest
from xinheng.core.hal import Backend, Device, DeviceInfo, DeviceOptions, DeviceSpec

from .profiles import PROFILES


class SimBackend(Backend):
    """Devices such as `sim:exact`."""

    name: ClassVar[str] = "sim"
    api_version: ClassVar[tuple[int, int]] = (1, 0)
    priority: ClassVar[int] = -100

    def probe(self) -> list[DeviceInfo]:
        return [DeviceInfo(f"sim:{word}", profile.text, emulated=True) for word, profile in PROFILES.items()]

    def open(self, spec: DeviceSpec, options: DeviceOptions | None = None) -> Device:
        word = spec.word or "exact"
        if word not in PROFILES or spec.ordinals or spec.runtime is not None:
            raise DeviceError(
                f"device {spec} does not exist{nearest(word, list(PROFILES))}; known: {', '.join(PROFILES)}"
            )
        profile = PROFILES[word]
        return profile.make(f"sim:{word}", profile.text)
