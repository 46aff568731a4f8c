"""Finds and opens Ascend devices: digits are cards, the word `cpu` is MindSpore's CPU target on this processor."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

from xinheng.core.errors import DeviceError, nearest
from xinheng.core.hal import Backend, Device, DeviceInfo, DeviceOptions, DeviceSpec, Finding

from .stack import findings

RUNTIMES = ("torch_npu", "mindspore")
"""The frameworks that have an Ascend target; the first is the default for cards."""


class AscendBackend(Backend):
    """Cards as `ascend:0`, `ascend:0@mindspore`; without a card `ascend:cpu@mindspore`."""

    name: ClassVar[str] = "ascend"
    api_version: ClassVar[tuple[int, int]] = (1, 0)
    priority: ClassVar[int] = 60

    def probe(self) -> list[DeviceInfo]:
        """No card can be opened by this release; `diagnose` says why."""
        return []

    def open(self, spec: DeviceSpec, options: DeviceOptions | None = None) -> Device:
        if spec.runtime not in (None, *RUNTIMES):
            hint = nearest(spec.runtime, list(RUNTIMES))
            raise DeviceError(
                f"device {spec}: there is no runtime {spec.runtime!r}{hint}; known: {', '.join(RUNTIMES)}"
            )
        if spec.word is None:
            told = "; ".join(f"{f.text}: {f.remedy}" for f in findings())
            runtime = spec.runtime or RUNTIMES[0]
            raise DeviceError(f"device {spec} (runtime {runtime}) cannot be opened: {told}")
        if spec.word != "cpu" or spec.runtime not in (None, "mindspore"):
            raise DeviceError(f"device {spec} does not exist; the only one without a card is ascend:cpu@mindspore")
        return _open_mindspore(options or DeviceOptions())

    def diagnose(self) -> list[Finding]:
        return findings()


def _open_mindspore(options: DeviceOptions) -> Device:
    remedy = "pip install 'xinheng[mindspore]'"
    if find_spec("mindspore") is None:
        raise DeviceError(f"ascend:cpu@mindspore needs mindspore, which is not installed; {remedy}")
    try:
        from .mindspore import MindSporeDevice
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(
            f"ascend:cpu@mindspore: mindspore is installed and cannot be imported: {error}; {remedy}"
        ) from error
    return MindSporeDevice(options)
