"""What importing and probing a plugin costs and changes, seen by a process that has done nothing else yet."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from importlib.metadata import EntryPoint, entry_points, packages_distributions

from xinheng.core.errors import PluginError
from xinheng.core.hal import API_VERSION, Backend, DeviceInfo, DeviceSpec
from xinheng.core.plugins import GROUP, PluginManager

from .symptom import Findings

FRAMEWORKS = frozenset({"jax", "mindspore", "onnxruntime", "tensorflow", "torch"})
"""What takes a second or more to import, so that every command would."""
SLOW = 0.5
"""Seconds that an import or a probe may take before all users feel it."""
HARMLESS = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts/", "/dev/shm/")


@dataclass(frozen=True)
class Surroundings:
    """What a process has that code could change behind its back."""

    modules: frozenset[str]
    environment: dict[str, str]
    folder: str
    threads: frozenset[str]
    devices: frozenset[str]

    @classmethod
    def now(cls) -> Surroundings:
        threads = frozenset(thread.name for thread in threading.enumerate())
        return cls(frozenset(sys.modules), dict(os.environ), os.getcwd(), threads, _open_devices())


def _open_devices() -> frozenset[str]:
    """Device files that this process has open, where the system tells."""
    found = set()
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the listing itself, closed by now
            continue
        if target.startswith("/dev/") and not target.startswith(HARMLESS):
            found.add(target)
    return frozenset(found)


def examine_loading(name: str, findings: Findings) -> None:
    """Import the plugin of that name, then make its backend and probe twice."""
    entry = entry_points(group=GROUP, name=name)[name]
    with _watched("import", findings) as watch:
        try:
            entry.load()
        except BaseException as error:  # a plugin may call sys.exit or raise anything at all
            text = f"importing {entry.module} raises {type(error).__name__}: {error}"
            findings.error("plugin.broken", text, "import what may be missing inside open(), and say there what it is")
            return
    modules = frozenset(sys.modules) - watch.before.modules
    findings.figures |= {"import_seconds": round(watch.seconds, 3), "import_modules": len(modules)}
    if watch.seconds > SLOW:
        findings.warning(
            "import.slow",
            f"importing {entry.module} takes {watch.seconds:.1f} s and loads {len(modules)} modules",
            "import what is heavy inside open(), since every command imports every plugin",
        )
    _foreign(entry, modules, findings)
    manager = PluginManager()
    try:
        backend = manager.backend(name)
    except PluginError as error:
        findings.error("plugin.contract", str(error), "subclass xinheng.core.hal.Backend, for its API_VERSION")
        return
    _names(name, backend, findings)
    with _watched("probe", findings) as watch:
        first = _probed(backend, findings)
    if first is None:
        return
    findings.figures["probe_seconds"] = round(watch.seconds, 3)
    loaded = FRAMEWORKS & frozenset(sys.modules) - watch.before.modules
    if watch.seconds > SLOW:
        findings.warning("probe.slow", f"probe takes {watch.seconds:.1f} s", "look for device files, load no SDK")
    if loaded:
        findings.error("probe.framework", f"probe imports {', '.join(sorted(loaded))}", "import it inside open()")
    if first != _probed(backend, findings):
        findings.error("probe.unstable", "a second probe finds other devices", "let probe depend on the machine alone")
    _specs(name, [info.spec for info in first], findings)
    findings.figures["devices"] = [info.spec for info in first]
    if not first and not backend.diagnose():
        findings.warning(
            "diagnose.silent", "probe finds no device and diagnose says nothing about why", "return a Finding there"
        )


def _probed(backend: Backend, findings: Findings) -> list[DeviceInfo] | None:
    """What a probe finds, if it is what a probe may return."""
    try:
        found = backend.probe()
    except BaseException as error:
        text = f"probe raises {type(error).__name__}: {error}"
        findings.error("probe.raises", text, "return an empty list, and tell the reason in diagnose()")
        return None
    if not (isinstance(found, list) and all(isinstance(info, DeviceInfo) for info in found)):
        findings.error("probe.type", f"probe returns {found!r}", "return a list of DeviceInfo")
        return None
    return found


def _names(name: str, backend: Backend, findings: Findings) -> None:
    if backend.name != name:
        text = f"it is installed as {name!r} and calls itself {backend.name!r}"
        findings.error("plugin.name", text, "give the entry point and Backend.name the same name")
    if backend.api_version > API_VERSION:
        ours, theirs = (".".join(map(str, version)) for version in (API_VERSION, backend.api_version))
        text = f"it was written for version {theirs} of the contract, this xinheng has {ours}"
        findings.note("plugin.newer", text, "what is new there is not asked for here")


def _specs(name: str, specs: list[str], findings: Findings) -> None:
    for spec in specs:
        if DeviceSpec.parse(spec).backend != name:
            findings.error(
                "probe.spec", f"probe names {spec!r}, which is no device of {name!r}", "begin it with the name"
            )


def _foreign(entry: EntryPoint, modules: frozenset[str], findings: Findings) -> None:
    """Packages of others among the modules that the import has loaded."""
    own = {entry.module.partition(".")[0], "xinheng"}
    owner = entry.dist.name if entry.dist else None
    tops = {module.partition(".")[0] for module in modules} - own - sys.stdlib_module_names
    owners = packages_distributions()
    foreign = {top for top in tops if owner not in owners.get(top, [])}
    frameworks = sorted(foreign & FRAMEWORKS)
    if frameworks:
        findings.error(
            "import.framework",
            f"importing {entry.module} imports {', '.join(frameworks)}",
            "import it inside open(): a machine without it must still list this plugin, and none should wait for it",
        )
    native = sorted(
        {
            module.partition(".")[0]
            for module in modules
            if module.partition(".")[0] in foreign - FRAMEWORKS
            and isinstance(getattr(sys.modules[module].__spec__, "loader", None), ExtensionFileLoader)
        }
    )
    if native:
        findings.warning(
            "import.native",
            f"importing {entry.module} loads native code of {', '.join(native)}",
            "if that is an SDK, import it inside open()",
        )


@dataclass
class _Watch:
    before: Surroundings
    seconds: float = 0.0


@contextmanager
def _watched(what: str, findings: Findings) -> Iterator[_Watch]:
    """Time a step and note what it changes around it."""
    watch = _Watch(Surroundings.now())
    began = time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - began
    before, after = watch.before, Surroundings.now()
    if opened := sorted(after.devices - before.devices):
        findings.error(f"{what}.device", f"{what} opens {', '.join(opened)}", "touch the device in open() only")
    if started := sorted(after.threads - before.threads):
        findings.error(f"{what}.thread", f"{what} starts threads: {', '.join(started)}", "start them in open()")
    if changed := before.environment.items() ^ after.environment.items():
        names = ", ".join(sorted({key for key, _ in changed}))
        findings.warning(f"{what}.environment", f"{what} changes {names} in the environment", "set it in open()")
    if after.folder != before.folder:
        findings.error(f"{what}.folder", f"{what} changes the working directory", "leave it alone")
