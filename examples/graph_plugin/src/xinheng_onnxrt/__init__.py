"""ONNX Runtime as a backend: a toolchain that knows no kernels, only whole graphs in a format of its own."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from xinheng.core import Backend, Device, DeviceInfo, Finding
from xinheng.core.errors import DeviceError


class OnnxBackend(Backend):
    """The processor through ONNX Runtime, as device `onnxrt:0`."""

    name = "onnxrt"
    api_version = (1, 0)
    priority = -10

    def probe(self) -> list[DeviceInfo]:
        if self.diagnose():
            return []
        return [DeviceInfo("onnxrt:0", "ONNX Runtime on the processor", None, f"onnxruntime {version('onnxruntime')}")]

    def open(self, spec: Any, options: Any = None) -> Device:
        if spec.ordinals not in ((), (0,)) or spec.word or spec.runtime:
            raise DeviceError(f"device {spec} does not exist; there is one, onnxrt:0")
        from .device import OnnxDevice

        return OnnxDevice(options.threads if options else None)

    def diagnose(self) -> list[Finding]:
        missing = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
        return [Finding("onnxrt.missing", f"{name} is not installed", f"pip install {name}") for name in missing]
