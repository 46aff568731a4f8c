"""Finds and opens Ascend devices: digits are cards, words are emulations of a generation, or MindSpore's CPU target."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

from xinheng.core.errors import DeviceError, nearest
from xinheng.core.hal import Backend, Device, DeviceInfo, DeviceOptions, DeviceSpec, Finding

from .chips import EMULATED, chip_called
from .stack import Machine, blocking, findings

RUNTIMES = ("torch_npu", "mindspore")
"""The frameworks that have an Ascend target; the first is the default for cards."""
CPU = "ascend:cpu@mindspore"


class AscendBackend(Backend):
    """Cards as `ascend:0`; without a card `ascend:cpu@mindspore`, and the emulations `ascend:910b` and others."""

    name: ClassVar[str] = "ascend"
    api_version: ClassVar[tuple[int, int]] = (1, 0)
    priority: ClassVar[int] = 60

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()

    def probe(self) -> list[DeviceInfo]:
        """The visible cards, if all their software is there; `diagnose` says what is missing. Imports no framework."""
        machine = self._machine
        if blocking(findings(machine)):
            return []
        name = machine.chip.name if machine.chip is not None else "Ascend"
        plugin, cann = machine.version_of("torch_npu"), machine.cann_version
        driver = f"driver {machine.driver_version or 'unknown'}, CANN {cann or 'unknown'}, torch_npu {plugin}"
        return [
            DeviceInfo(f"ascend:{index}", f"{name} (card {card})", None, driver)
            for index, card in enumerate(machine.visible)
        ]

    def open(self, spec: DeviceSpec, options: DeviceOptions | None = None) -> Device:
        if spec.runtime not in (None, *RUNTIMES):
            hint = nearest(spec.runtime, list(RUNTIMES))
            raise DeviceError(
                f"device {spec}: there is no runtime {spec.runtime!r}{hint}; known: {', '.join(RUNTIMES)}"
            )
        options = options or DeviceOptions()
        if spec.word is None:
            return self._open_card(spec, options)
        if spec.word == "cpu" and spec.runtime in (None, "mindspore"):
            return _open_mindspore(options)
        if spec.word in EMULATED and spec.runtime in (None, "torch_npu"):
            return _open_emulation(spec.word, options)
        words = ", ".join(f"ascend:{word}" for word in EMULATED)
        raise DeviceError(f"device {spec} does not exist; those without a card are {CPU} and the emulations {words}")

    def _open_card(self, spec: DeviceSpec, options: DeviceOptions) -> Device:
        runtime = spec.runtime or RUNTIMES[0]
        if runtime == "mindspore":
            raise DeviceError(f"device {spec}: this release drives cards by torch_npu only; MindSpore runs as {CPU}")
        missing = blocking(findings(self._machine))
        if missing:
            told = "; ".join(f"{f.text}: {f.remedy}" for f in missing)
            raise DeviceError(f"device {spec} (runtime {runtime}) cannot be opened: {told}; without a card use {CPU}")
        if len(spec.ordinals) > 1:
            raise DeviceError(f"device {spec} names several cards; a device is one, and ranks open one each")
        index, visible = (spec.ordinals or (0,))[0], self._machine.visible
        if index >= len(visible):
            raise DeviceError(f"device {spec} does not exist; this process sees ascend:0 to ascend:{len(visible) - 1}")
        from .torch_npu.runtime import open_card

        return open_card(index, visible[index], options)

    def diagnose(self) -> list[Finding]:
        return findings(self._machine)


def _open_emulation(word: str, options: DeviceOptions) -> Device:
    if find_spec("torch") is None:
        raise DeviceError(
            f"ascend:{word} emulates {chip_called(word).soc} on torch, which is not installed; pip install torch"
        )
    from .emulation import open_emulation

    return open_emulation(word, options)


def _open_mindspore(options: DeviceOptions) -> Device:
    remedy = "pip install 'xinheng[mindspore]'"
    if find_spec("mindspore") is None:
        raise DeviceError(f"{CPU} needs mindspore, which is not installed; {remedy}")
    try:
        from .mindspore import MindSporeDevice
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(f"{CPU}: mindspore is installed and cannot be imported: {error}; {remedy}") from error
    return MindSporeDevice(options)
