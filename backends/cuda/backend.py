"""Finds and opens NVIDIA GPUs: digits are cards, the word `interpreted` is Triton's interpreter on this processor."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

from xinheng.core.errors import DeviceError
from xinheng.core.hal import Backend, Device, DeviceInfo, DeviceOptions, DeviceSpec, Finding

from .stack import findings

WORD = "interpreted"


class CUDABackend(Backend):
    """Cards as `cuda:0`; without a card `cuda:interpreted`."""

    name: ClassVar[str] = "cuda"
    api_version: ClassVar[tuple[int, int]] = (1, 0)
    priority: ClassVar[int] = 50

    def probe(self) -> list[DeviceInfo]:
        """The emulation where Triton is installed."""
        emulated = [] if find_spec("torch") is None or find_spec("triton") is None else [INTERPRETED]
        return emulated

    def open(self, spec: DeviceSpec, options: DeviceOptions | None = None) -> Device:
        if spec.word == WORD:
            return _open_interpreted(options or DeviceOptions())
        raise DeviceError(f"device {spec} cannot be opened")

    def diagnose(self) -> list[Finding]:
        return findings()


INTERPRETED = DeviceInfo(f"cuda:{WORD}", "the Triton kernels, interpreted on this processor", emulated=True)


def _open_interpreted(options: DeviceOptions) -> Device:
    for package in ("torch", "triton"):
        if find_spec(package) is None:
            raise DeviceError(f"cuda:{WORD} needs {package}, which is not installed; pip install 'xinheng[cuda]'")
    from .interpreted import InterpretedDevice

    return InterpretedDevice(options)
