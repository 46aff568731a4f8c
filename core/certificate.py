"""Certificates: the small, portable result of a conformance run, and the requirement that a device has one.

A certificate speaks of one device with one driver, driven by one version of one plugin, in one numerics mode with one
set of overrides. It says nothing about any other combination, so with any other it does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import CertificateError, FormatError, SettingsError, SignatureError, XinhengError
from .hal.device import Device, Numerics
from .hal.spec import DeviceSpec
from .settings import RuntimeSettings
from .signature import Signature, digest, plain, public_key, read_document, verify

KIND: Literal["xinheng.certificate"] = "xinheng.certificate"
VERSION = 1
"""Of the format. A reader refuses another one by name."""

SHOWN = 3
"""How many certificates that do not fit an error message tells of."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeviceIdentity(_Data):
    """What has to be the same for a result to be about the same device.

    Attributes:
        spec: the name it was opened by; its ordinals are only places for cards of one kind.
        name, driver: as the device and its probe tell them.
        emulated: it is no silicon.
        plugin, plugin_version: the distribution that brought the backend.
    """

    spec: str
    name: str
    driver: str = ""
    emulated: bool = False
    plugin: str = ""
    plugin_version: str = ""


class Mode(_Data):
    """How a device was made to compute.

    Attributes:
        numerics: "strict" or "fast".
        overrides: op to "device", "reference", "decompose" or "@kernel", as in the settings.
        capture: "eager" of a device that runs one kernel after another, "graph" of one that takes graphs as a whole.
    """

    numerics: str = "strict"
    overrides: dict[str, str] = {}
    capture: str = "eager"

    @classmethod
    def of(cls, device: Device, numerics: Numerics) -> Mode:
        """How an opened device computes."""
        capture = "eager" if type(device).compile is Device.compile else "graph"
        return Mode(numerics=numerics.mode, overrides=dict(numerics.overrides), capture=capture)


class Certificate(_Data):
    """What a conformance run proved.

    Attributes:
        level: the highest that is reached, such as "L1"; empty for none.
        items, passed, debt: how many items the run had, how many passed, and how many known failures excuse.
        kill_rate, false_alarms: share of seeded bugs that this version of the suite finds, and how often it blames a
            correct kernel; None where that was not measured.
        issued: when, in UTC.
        report: digest of the report that it was made from.
        digest, signature: of everything else; see `signature`.
    """

    kind: Literal["xinheng.certificate"]
    version: int
    suite_version: str
    level: str
    device: DeviceIdentity
    mode: Mode
    items: int
    passed: int
    debt: int
    kill_rate: float | None = None
    false_alarms: int | None = None
    issued: str
    report: str
    digest: str = ""
    signature: Signature | None = None

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """A certificate with its digest, not signed."""
        made = cls(kind=KIND, version=VERSION, **fields)
        return made.model_copy(update={"digest": digest(made.document())})

    @classmethod
    def read(cls, document: Mapping[str, Any], where: str) -> Self:
        """The certificate that a JSON object stands for; whether it is genuine is a question for `signature.verify`.

        Raises:
            FormatError: it is none, or one of another version of the format; the message names both.
        """
        if document.get("kind") != KIND:
            raise FormatError(f"{where}: field 'kind' is {document.get('kind')!r}; that of a certificate is {KIND!r}")
        if document.get("version") != VERSION:
            raise FormatError(
                f"{where}: certificate format {document.get('version')!r}, and this xinheng reads format {VERSION}"
            )
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            raise FormatError(f"{where}: field {'.'.join(map(str, first['loc']))!r}: {first['msg']}") from None

    def document(self) -> dict[str, Any]:
        """The JSON object that stands for it."""
        data: dict[str, Any] = plain(self.model_dump())
        return data

    @property
    def badge(self) -> str:
        """The level as people may quote it, such as "L3 (emulated)"."""
        return badge(self.level, self.device.emulated)

    def misfits(self, device: DeviceIdentity, mode: Mode, level: str) -> tuple[str, ...]:
        """Why it does not show that a device in a mode is at a level, one phrase each; empty where it does."""
        told = []
        if self.level < level:
            told.append(f"it is of {self.level or 'no level'}, not {level}")
        if self.device.emulated or device.emulated:
            told.append("an emulation proves nothing about silicon")
        kinds = [str(_kind(which.spec)) for which in (self.device, device)]
        pairs = [("backend", *kinds)]
        pairs += [(f, getattr(self.device, f), getattr(device, f)) for f in ("name", "driver", "plugin")]
        pairs.append(("plugin version", self.device.plugin_version, device.plugin_version))
        pairs += [(f, getattr(self.mode, f), getattr(mode, f)) for f in ("numerics", "capture")]
        pairs.append(("overrides", _listed(self.mode.overrides), _listed(mode.overrides)))
        told += [f"{what} is {has or 'none'!r}, not {needs or 'none'!r}" for what, has, needs in pairs if has != needs]
        return tuple(told)


def badge(level: str, emulated: bool) -> str:
    """A level as people may quote it, such as "L3 (emulated)"."""
    return f"{level or 'no level'}{' (emulated)' if emulated else ''}"


def require_certificate(device: DeviceIdentity, mode: Mode, level: str, runtime: RuntimeSettings) -> Certificate:
    """See to it that a device in a mode has a certificate of a level, and return that one.

    Args:
        runtime: where certificates are, and whose signatures count.

    Raises:
        CertificateError: none in the folder fits; the message says what is wrong with each, and how one is made.
        SettingsError: a certificate is required and no key is trusted.
    """
    if not runtime.trusted_keys:
        raise SettingsError(
            "runtime.require_certificate needs runtime.trusted_keys: list the public keys whose signatures count"
        )
    trusted = [public_key(text) for text in runtime.trusted_keys]
    if device.emulated:
        raise CertificateError(
            f"{device.spec} is an emulation, and runtime.require_certificate = {level!r} asks for silicon; "
            "choose a real device, or unset it"
        )
    rejected = []
    for path in sorted(runtime.certificates.glob("*.json")):
        found = _examined(path, trusted)
        misfits = found.misfits(device, mode, level) if isinstance(found, Certificate) else (found,)
        if isinstance(found, Certificate) and not misfits:
            return found
        rejected.append(_Rejected(path.name, misfits))
    raise CertificateError(_told(device, level, runtime.certificates, rejected))


@dataclass(frozen=True, slots=True)
class _Rejected:
    name: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(self.reasons)}"


def _examined(path: Path, trusted: Sequence[str]) -> Certificate | str:
    """A genuine certificate, or why it is none."""
    try:
        document = read_document(path)
        certificate = Certificate.read(document, path.name)
        verify(document, trusted)
    except SignatureError as error:
        return str(error)
    except (XinhengError, OSError) as error:
        return str(error).removeprefix(f"{path}: ").removeprefix(f"{path.name}: ")
    return certificate


def _told(device: DeviceIdentity, level: str, folder: Path, rejected: Sequence[_Rejected]) -> str:
    nearest = sorted(rejected, key=lambda r: len(r.reasons))[:SHOWN]
    more = f" and {len(rejected) - SHOWN} more" if len(rejected) > SHOWN else ""
    seen = f"those there do not fit ({'; '.join(map(str, nearest))}{more})" if rejected else "there is none at all"
    return (
        f"{device.spec} ({device.name}) has no certificate of level {level} in {folder}: {seen}; "
        f"'xinheng conformance run --device {device.spec} --level {level} --report DIR' and "
        "'xinheng report sign DIR --key KEY.pem --install' make one"
    )


def _kind(spec: str) -> DeviceSpec:
    parsed = DeviceSpec.parse(spec)
    return DeviceSpec(parsed.backend, runtime=parsed.runtime)


def _listed(overrides: Mapping[str, str]) -> str:
    return ", ".join(f"{op}={how}" for op, how in sorted(overrides.items()))
