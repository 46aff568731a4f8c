"""Backends as plugins: found by entry point, imported only when asked for, and never able to break the program.

Extension point, for authors of a backend:

* group `xinheng.backends`; the name is the first word of the device names, `acme` for `acme:0`; `auto` is reserved;
* the value is a subclass of `xinheng.core.hal.Backend`, with the major number of `API_VERSION` that this package has;
* importing it is cheap and does not import an SDK; `probe` has no side effects.

A plugin that cannot be imported, exits, raises, has the wrong type or another version becomes a `PluginRecord` that
says so. Asked for by name it is a loud error; `auto` passes it over and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeVar

from .certificate import DeviceIdentity
from .errors import DeviceError, PluginError, XinhengError, nearest
from .hal.backend import API_VERSION, Backend, DeviceInfo, Finding
from .hal.device import Device, DeviceOptions
from .hal.spec import DeviceSpec

GROUP = "xinheng.backends"

Status = Literal["installed", "available", "no device", "disabled", "incompatible", "failed"]
"""What is known of a plugin; "installed" means that it has not been imported yet."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """A plugin, who brought it, and what became of it; `error` is a sentence for every status but the good two.

    `findings` is what the backend has to say about its software on this machine, most serious first.
    """

    name: str
    distribution: str
    version: str
    status: Status
    devices: tuple[DeviceInfo, ...] = ()
    error: str | None = None
    findings: tuple[Finding, ...] = ()


class PluginManager:
    """The backends of this Python environment.

    Args:
        disabled: names that are listed but never imported.
        group: the entry-point group.
    """

    def __init__(self, disabled: Iterable[str] = (), group: str = GROUP) -> None:
        self._disabled = frozenset(disabled)
        self._group = group
        self._backends: dict[str, Backend] = {}
        self._entries = _installed(group)
        self._records = {name: self._listed(name) for name in sorted(self._entries)}

    @property
    def names(self) -> tuple[str, ...]:
        """All plugins, imported or not."""
        return tuple(self._records)

    def records(self, probe: bool = True) -> tuple[PluginRecord, ...]:
        """One record per plugin, by name. Without `probe` nothing is imported and only what is known so far is told."""
        if probe:
            for name in self.names:
                self._probe(name)
        return tuple(self._records.values())

    def diagnosed(self, name: str) -> PluginRecord:
        """The record of a plugin with its findings, which one with devices has too: how it could be faster, say.

        Raises:
            PluginError: no plugin of that name is installed.
        """
        if name not in self._records:
            raise PluginError(self._missing(name))
        record, backend = self._probe(name), self._backends.get(name)
        if backend is None or record.findings:
            return record
        self._records[name] = replace(record, findings=_findings(backend))
        return self._records[name]

    def backend(self, name: str) -> Backend:
        """The backend of that name.

        Raises:
            PluginError: it is not installed, disabled, incompatible or failed; with the reason and the remedy.
        """
        owner = self._owner(name)
        if owner is None:
            raise PluginError(self._missing(name))
        backend = self._import(owner)
        if backend is None:
            raise _unusable(self._records[owner])
        return backend

    def _owner(self, name: str) -> str | None:
        """The plugin whose devices have names that begin with a word: the one of that name, or one that says so."""
        return name if name in self._records else self._answering().get(name)

    def _answering(self) -> dict[str, str]:
        """The first words of all device names, and the plugin that answers to each."""
        backends = [(name, backend) for name in self.names if (backend := self._import(name)) is not None]
        return {word: name for name, backend in reversed(backends) for word in _guarded(backend.names)[0] or ()}

    def open(self, spec: str, options: DeviceOptions | None = None) -> Device:
        """Open a device: the one that `spec` names, or for "auto" the first real one in order of priority.

        `options` are handed to the backend.

        Raises:
            PluginError: there is no such plugin, or it does not work.
            DeviceError: the plugin works and the device is not there; the message says what is missing.
        """
        parsed = DeviceSpec.parse(spec)
        if parsed.automatic:
            return self._open_best(options)
        backend = self.backend(parsed.backend)
        if not parsed.emulated and parsed.backend in self._records:
            record = self._probe(parsed.backend)
            if record.status == "no device":
                raise DeviceError(f"backend {record.name!r} has no device: {record.error}")
            if not record.devices:
                raise _unusable(record)
        return self._open(parsed, options, backend)

    def identify(self, device: Device) -> DeviceIdentity:
        """What makes results about an opened device comparable: the device, its driver, and who brought its backend."""
        parsed = DeviceSpec.parse(device.spec)
        owner = self._owner(parsed.backend)
        record = self._probe(owner) if owner else None
        found = next((info for info in record.devices if info.spec == device.spec), None) if record else None
        return DeviceIdentity(
            spec=device.spec,
            name=device.name,
            driver=(found.driver if found else None) or "",
            emulated=parsed.emulated or (found is not None and found.emulated),
            plugin=record.distribution if record else "",
            plugin_version=record.version if record else "",
        )

    def _open_best(self, options: DeviceOptions | None) -> Device:
        candidates = [(name, backend) for name in self.names if (backend := self._import(name)) is not None]
        for name, backend in sorted(candidates, key=lambda pair: (-pair[1].priority, pair[0])):
            for info in self._probe(name).devices:
                if info.emulated:
                    continue
                try:
                    return self._open(DeviceSpec.parse(info.spec), options, backend)
                except XinhengError as error:
                    self._note(name, "failed", f"{info.spec} was found but cannot be opened: {error}")
        told = "; ".join(f"{record.name}: {record.error or 'emulations only'}" for record in self._records.values())
        raise DeviceError(f"no device found for 'auto' ({told or 'no backend plugin is installed'})")

    def _open(self, spec: DeviceSpec, options: DeviceOptions | None, backend: Backend) -> Device:
        def attempt() -> Device:
            device = backend.open(spec, options)
            if not isinstance(device, Device):
                raise TypeError(f"open returned {type(device).__name__}, not a Device")
            return device

        device, error = _guarded(attempt)
        if device is not None:
            return device
        if isinstance(error, XinhengError):
            raise error
        raise PluginError(f"backend {spec.backend!r} failed to open {str(spec)!r}: {_sentence(error)}") from error

    def _listed(self, name: str) -> PluginRecord:
        entries = self._entries[name]
        owners = sorted(map(_owner, entries))
        record = PluginRecord(name, *owners[0], status="installed")
        if name in self._disabled:
            return replace(record, status="disabled", error="setting runtime.plugins_disabled lists it")
        if len(entries) > 1:
            listed = " and ".join(f"{owner} {version}" for owner, version in owners)
            error = f"{listed} both register this name; uninstall one of them"
            return replace(record, distribution=", ".join(owner for owner, _ in owners), status="failed", error=error)
        if name == "auto":
            return replace(record, status="failed", error="the name 'auto' is reserved")
        return record

    def _import(self, name: str) -> Backend | None:
        if self._records[name].status == "installed" and name not in self._backends:
            backend, error = _guarded(lambda: self._load(name))
            if backend is not None:
                self._backends[name] = backend
            elif isinstance(error, _Incompatible):
                self._note(name, "incompatible", str(error))
            else:
                self._note(name, "failed", _sentence(error))
        return self._backends.get(name)

    def _load(self, name: str) -> Backend:
        (entry,) = self._entries[name]
        loaded: Any = _plugin(self._group, entry)
        if not (isinstance(loaded, type) and issubclass(loaded, Backend)):
            raise TypeError(f"{entry.value} is no subclass of xinheng.core.hal.Backend")
        theirs: Any = getattr(loaded, "api_version", None)
        if theirs is None:
            raise TypeError("it declares no api_version, the version of the backend contract it was written for")
        if not (isinstance(theirs, tuple) and len(theirs) == 2 and all(isinstance(part, int) for part in theirs)):
            raise TypeError(f"its api_version is {theirs!r}, not a pair of integers")
        if theirs[0] != API_VERSION[0]:
            raise _Incompatible(
                f"it speaks version {theirs[0]}.{theirs[1]} of the backend contract, this xinheng speaks "
                f"{API_VERSION[0]}.{API_VERSION[1]}; install a release of it for this major version"
            )
        return loaded()

    def _probe(self, name: str) -> PluginRecord:
        backend = self._import(name)
        if backend is not None and self._records[name].status == "installed":
            devices, error = _guarded(lambda: _checked(backend.probe()))
            if devices is None:
                self._note(name, "failed", f"probing raised {_sentence(error)}")
            elif devices:
                self._records[name] = replace(self._records[name], status="available", devices=devices)
            else:
                findings = _findings(backend)
                told = "; ".join(f"{finding.text}; {finding.remedy}" for finding in findings)
                self._note(name, "no device", told or "its probe found none and gives no reason")
                self._records[name] = replace(self._records[name], findings=findings)
        return self._records[name]

    def _note(self, name: str, status: Status, error: str) -> None:
        self._records[name] = replace(self._records[name], status=status, error=error)

    def _missing(self, name: str) -> str:
        installed = ", ".join(self.names) or "none"
        message = f"no backend plugin named {name!r} is installed (installed: {installed})"
        hint = nearest(name, [*self.names, *self._answering()])
        return f"{message}{hint or '; install the package that brings it, or choose one of these'}"


class _Incompatible(Exception):
    """A plugin was written for another major version of the contract."""


def _plugin(group: str, entry: EntryPoint) -> Any:
    """What an entry point names, loaded through stevedore, past its caches: they outlive a reinstallation."""
    from stevedore import NamedExtensionManager

    class Loader(NamedExtensionManager[Any]):
        def list_entry_points(self) -> list[EntryPoint]:
            return [entry]

    return Loader(group, names=[entry.name], on_load_failure_callback=_reraise).extensions[0].plugin


def _reraise(manager: Any, entry: EntryPoint, error: BaseException) -> None:
    raise error


def _installed(group: str) -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, []).append(entry)
    return found


def _unusable(record: PluginRecord) -> PluginError:
    return PluginError(f"backend {record.name!r} of {record.distribution} is {record.status}: {record.error}")


def _owner(entry: EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist else ("unknown", "unknown")


def _guarded(action: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    # A plugin may call sys.exit or raise anything at all; only an interrupt by the user goes through.
    try:
        return action(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return None, error


def _sentence(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _checked(devices: Sequence[DeviceInfo]) -> tuple[DeviceInfo, ...]:
    for device in devices:
        if not isinstance(device, DeviceInfo):
            raise TypeError(f"probe returned {type(device).__name__} where a DeviceInfo belongs")
    return tuple(devices)


def _findings(backend: Backend) -> tuple[Finding, ...]:
    """What a backend has to say; one finding that it failed to, if it did."""
    findings, error = _guarded(lambda: tuple(backend.diagnose()))
    if error is None:
        return findings or ()
    text, remedy = f"its diagnosis raised {_sentence(error)}", "report it to the author of the plugin"
    chinese = ("它的诊断过程出错：" + _sentence(error), "请告知该插件的作者")
    return (Finding("diagnose.raised", text, remedy, chinese),)
