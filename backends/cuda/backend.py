"""Finds and opens NVIDIA GPUs: digits are cards, the word `interpreted` is Triton's interpreter on this processor."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

from xinheng.core.errors import DeviceError
from xinheng.core.hal import Backend, Device, DeviceInfo, DeviceOptions, DeviceSpec, Finding

from .stack import OLDEST, findings, look, usable

WORD = "interpreted"
INTERPRETED = DeviceInfo(f"cuda:{WORD}", "Triton kernels, interpreted on the processor", emulated=True)


class CUDABackend(Backend):
    """Cards as `cuda:0`; without a card `cuda:interpreted`."""

    name: ClassVar[str] = "cuda"
    api_version: ClassVar[tuple[int, int]] = (1, 0)
    priority: ClassVar[int] = 50

    def probe(self) -> list[DeviceInfo]:
        stack, found = look(), []
        if usable(stack) and stack.driver is not None and stack.torch:
            software = f"driver {stack.driver.version}, CUDA {'.'.join(map(str, stack.torch))}"
            for index, card in enumerate(stack.cards):
                if card.capability >= OLDEST:
                    found.append(DeviceInfo(f"cuda:{index}", card.name, card.memory, software))
        if stack.torch is not None and stack.triton:
            found.append(INTERPRETED)
        return found

    def open(self, spec: DeviceSpec, options: DeviceOptions | None = None) -> Device:
        if spec.runtime not in (None, "torch") or spec.word not in (None, WORD) or len(spec.ordinals) > 1:
            raise DeviceError(f"device {spec} does not exist; there are cards such as cuda:0, and cuda:{WORD}")
        if spec.word == WORD:
            return _open_interpreted(options or DeviceOptions())
        stack, index = look(), spec.ordinals[0] if spec.ordinals else 0
        spelled = f"cuda:{index}"
        if not usable(stack):
            told = "; ".join(f"{f.text}: {f.remedy}" for f in findings(stack))
            raise DeviceError(f"device {spelled} cannot be opened: {told}")
        if index >= len(stack.cards):
            raise DeviceError(f"device {spelled} does not exist; this process sees {len(stack.cards)} cards")
        if stack.cards[index].capability < OLDEST:
            low = next(f for f in findings(stack) if f.text.startswith(f"{spelled} "))
            raise DeviceError(f"device {spelled} cannot be opened: {low.text}; {low.remedy}")
        from .device import CUDADevice

        return CUDADevice(index, options or DeviceOptions())

    def diagnose(self) -> list[Finding]:
        return findings(look())


def _open_interpreted(options: DeviceOptions) -> Device:
    for package in ("torch", "triton"):
        if find_spec(package) is None:
            raise DeviceError(f"cuda:{WORD} needs {package}, which is not installed; pip install 'xinheng[cuda]'")
    from .interpreted import InterpretedDevice

    return InterpretedDevice(options)
