"""Naming a device: `name[:ordinals|word][@runtime]`, for example `cpu`, `sim:exact`, `acme:0,1@torch`.

Digits are silicon, words are emulation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import DeviceError


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A parsed device name. `auto` means the best device that is really there, never an emulated one."""

    backend: str
    ordinals: tuple[int, ...] = ()
    word: str | None = None
    runtime: str | None = None

    @classmethod
    def parse(cls, text: str) -> DeviceSpec:
        """Read a device name; DeviceError says what the grammar is."""
        match = re.fullmatch(
            r"([a-z][a-z0-9_-]*)(?::([0-9]+(?:,[0-9]+)*)|:([a-z][a-z0-9_-]*|[0-9]+[a-z][a-z0-9_-]*))?(?:@([a-z0-9_]+))?",
            text,
        )
        if match is None:
            raise DeviceError(
                f"device {text!r} is not of the form name[:ordinals|word][@runtime], such as cpu, sim:exact or name:0,1"
            )
        ordinals = tuple(int(part) for part in match[2].split(",")) if match[2] else ()
        if len(set(ordinals)) != len(ordinals):
            raise DeviceError(f"device {text!r} names one ordinal twice")
        return cls(match[1], ordinals, match[3], match[4])

    @property
    def emulated(self) -> bool:
        return self.word is not None

    @property
    def automatic(self) -> bool:
        return self.backend == "auto"

    def __str__(self) -> str:
        place = ",".join(map(str, self.ordinals)) if self.ordinals else self.word
        return self.backend + (f":{place}" if place is not None else "") + (f"@{self.runtime}" if self.runtime else "")
