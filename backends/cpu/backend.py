"""Finds and opens the CPU."""

from __future__ import annotations

from importlib.metadata import version
from typing import ClassVar

from xinheng.core.errors import DeviceError
from xinheng.core.hal import Backend, Device, DeviceInfo, DeviceOptions, DeviceSpec, Finding
from xinheng.core.hal.host import host_memory

from .extra import INSTALL, has_torch
from .processor import processor_name


class CPUBackend(Backend):
    """The processor of this machine, as device `cpu:0`."""

    name: ClassVar[str] = "cpu"
    api_version: ClassVar[tuple[int, int]] = (1, 0)
    priority: ClassVar[int] = 0

    def probe(self) -> list[DeviceInfo]:
        runtime = f"torch {version('torch')}" if has_torch() else "native kernels"
        if not has_torch() and _kernels():
            return []
        return [DeviceInfo("cpu:0", processor_name(), host_memory().total, runtime)]

    def open(self, spec: DeviceSpec, options: DeviceOptions | None = None) -> Device:
        if spec.ordinals not in ((), (0,)) or spec.word is not None or spec.runtime not in (None, "torch"):
            raise DeviceError(f"device {spec} does not exist; the processor is cpu:0")
        from .device import CPUDevice
        from .jit import NativeUnavailable

        options = options or DeviceOptions()
        try:
            return CPUDevice(options)
        except NativeUnavailable as error:
            if not has_torch():
                text = f"the cpu backend needs native kernels or torch, and has neither: {error}"
                raise DeviceError(f"{text}; {INSTALL}, or a C++17 compiler such as g++") from error
            from .torch_device import TorchCPUDevice

            return TorchCPUDevice(options, str(error))

    def diagnose(self) -> list[Finding]:
        if has_torch():
            return _kernels()
        text = "torch is not installed: ops without native kernels do not run, those of models have them"
        said = "没有安装 torch：没有本机内核的算子不能运行，模型所用的算子都有"
        return [Finding("cpu.torch-missing", text, INSTALL, (said, INSTALL)), *_kernels()]


def _kernels() -> list[Finding]:
    """That the native kernels are missing, if they are: the device works without them. Nothing is compiled."""
    from .jit import NativeUnavailable, compiler_command
    from .prebuilt import load_prebuilt

    try:
        compiler_command()
    except NativeUnavailable as missing:
        try:
            load_prebuilt()
        except NativeUnavailable:
            text = f"there are no native kernels, so the slower ones of torch run: {missing.reason}"
            remedy = "install a C++17 compiler such as g++, or point CXX at one"
            said = (f"没有本机内核，改用较慢的 torch 内核：{missing.reason}", "安装 g++ 等 C++17 编译器，或用 CXX 指定")
            return [Finding("cpu.kernels-missing", text, remedy, said)]
    return []
