"""From a reference to a model and settings to a runner: the one place where the engine opens things."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xinheng.core.hal import Device, DeviceOptions, Numerics, ReferenceDevice
from xinheng.core.plugins import PluginManager
from xinheng.core.settings import RuntimeSettings

from .models import Model, open_model
from .runner import ModelRunner, Progress
from .settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Devices:
    """The device a model runs on, and the one that takes over ops it lacks (None: that is an error)."""

    main: Device
    fallback: Device | None


def open_devices(runtime: RuntimeSettings) -> Devices:
    """Open what the settings name.

    Raises:
        PluginError, DeviceError: a device cannot be opened; the message says what is missing.
    """
    manager = PluginManager(disabled=runtime.plugins_disabled)
    numerics = Numerics(runtime.numerics, runtime.overrides)
    options = DeviceOptions(runtime.threads, runtime.cache_dir, numerics)
    main = manager.open(runtime.device, options)
    if runtime.fallback == "error":
        return Devices(main, None)
    return Devices(main, ReferenceDevice() if runtime.fallback == "reference" else manager.open("cpu", options))


def load_runner(
    path: Path, runtime: RuntimeSettings, settings: EngineSettings, progress: Progress | None = None
) -> tuple[Model, ModelRunner]:
    """Open the model at `path`, its device, and make a runner of both."""
    model = open_model(path)
    devices = open_devices(runtime)
    return model, ModelRunner(model, devices.main, runtime, settings, fallback=devices.fallback, progress=progress)
