"""From a reference to a model and settings to a runner: the one place where the engine opens things."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xinheng.core.certificate import Mode, require_certificate
from xinheng.core.hal import Device, DeviceOptions, Numerics, ReferenceDevice
from xinheng.core.plugins import PluginManager
from xinheng.core.settings import RuntimeSettings

from .layers import WHOLE
from .models import Model, open_model
from .runner import ModelRunner, Progress
from .seat import Seat
from .settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Devices:
    """The device a model runs on, and the one that takes over ops it lacks (None: that is an error)."""

    main: Device
    fallback: Device | None


def open_devices(runtime: RuntimeSettings, seat: Seat | None = None) -> Devices:
    """Open what the settings name; with a seat, the device of its rank, which then meets those of the others.

    Raises:
        PluginError, DeviceError: a device cannot be opened; the message says what is missing.
        CertificateError: one lacks the certificate that the settings require.
    """
    manager = PluginManager(disabled=runtime.plugins_disabled)
    numerics = Numerics(runtime.numerics, runtime.overrides)
    options = DeviceOptions(runtime.threads, runtime.cache_dir, numerics, seat.ranks if seat else 1, runtime.graph)
    main = _opened(manager, seat.device(runtime.device) if seat else runtime.device, options, runtime)
    if seat is not None:
        seat.join(main)
    if runtime.fallback == "error":
        return Devices(main, None)
    if runtime.fallback == "reference":
        return Devices(main, ReferenceDevice())
    return Devices(main, _opened(manager, "cpu", options, runtime))


def _opened(manager: PluginManager, spec: str, options: DeviceOptions, runtime: RuntimeSettings) -> Device:
    device = manager.open(spec, options)
    if runtime.require_certificate is not None:
        mode = Mode.of(device, options.numerics)
        require_certificate(manager.identify(device), mode, runtime.require_certificate, runtime)
    return device


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, its runner, and the memory this process held before the model, with the framework loaded."""

    model: Model
    runner: ModelRunner
    memory_before: int


@contextmanager
def collector_paused() -> Iterator[None]:
    """No search for cyclic garbage inside: loading makes many objects that stay, and next to none that do not."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def load_runner(
    path: Path,
    runtime: RuntimeSettings,
    settings: EngineSettings,
    progress: Progress | None = None,
    seat: Seat | None = None,
) -> Loaded:
    """Open a device and the model at `path`, and make a runner of both; with a seat, of the shard of its rank."""
    devices = open_devices(runtime, seat)
    before = resident_memory()
    model = open_model(path)
    shard = seat.shard if seat else WHOLE
    runner = ModelRunner(
        model, devices.main, runtime, settings, fallback=devices.fallback, progress=progress, shard=shard
    )
    return Loaded(model, runner, before)


def resident_memory() -> int:
    """Bytes of memory this process holds now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def peak_memory() -> int:
    """The most bytes of memory this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
