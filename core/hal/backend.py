"""What a vendor's plugin is: something that finds devices of one kind, opens them, and knows its software stack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from .device import Device, DeviceOptions
from .spec import DeviceSpec

API_VERSION = (1, 0)
"""Version of this contract. A plugin with another major number is refused; a higher minor number is fine."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device that `probe` found. `memory` is its size in bytes, `driver` the version of what runs it."""

    spec: str
    name: str
    memory: int | None = None
    driver: str | None = None
    emulated: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """Something `diagnose` has to say: a stable code, what is the case, and what to do about it.

    `chinese` is the text and the remedy in Chinese, where the vendor's customers read that.
    """

    code: str
    text: str
    remedy: str
    chinese: tuple[str, str] | None = None

    def told(self, language: str) -> tuple[str, str]:
        """Text and remedy in a language, `en` or `zh`; in English if there is no other."""
        return self.chinese if language == "zh" and self.chinese is not None else (self.text, self.remedy)


class Backend(ABC):
    """Opens devices of one kind. Constructing and probing is cheap, has no side effects and needs no SDK.

    `api_version` is the version of this contract that the plugin was written for, as numbers and not as `API_VERSION`,
    which moves with the installed core. `priority` decides which device `auto` takes: the highest wins, the CPU has 0.
    """

    name: ClassVar[str]
    api_version: ClassVar[tuple[int, int]]
    priority: ClassVar[int] = 50

    def names(self) -> tuple[str, ...]:
        """The first words of the names of its devices, where there are others than its own."""
        return (self.name,)

    @abstractmethod
    def probe(self) -> list[DeviceInfo]:
        """The devices that could be opened now; an empty list if there are none."""

    @abstractmethod
    def open(self, spec: DeviceSpec, options: DeviceOptions | None = None) -> Device:
        """Open a device; `options` are the user's wishes, of which a backend takes what concerns it.

        Raises:
            DeviceError: it is not there or its software is incomplete; the message says what is missing and the remedy.
        """

    def diagnose(self) -> list[Finding]:
        """What stands in the way of using this backend here, most serious first."""
        return []
