"""`xinheng doctor`: what stands in the way of each kind of device on this machine, and what to do about it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Assignments, Json, settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xinheng.core.plugins import PluginRecord

LANGUAGES = ("en", "zh")
HEADS = {"en": ("backend", "code", "what", "what to do"), "zh": ("后端", "代码", "情况", "处理办法")}
STATUS = {
    "available": "可用",
    "no device": "没有设备",
    "disabled": "已停用",
    "incompatible": "版本不兼容",
    "failed": "出错",
    "installed": "已安装",
}
EMULATED = {"en": "emulations only", "zh": "仅有仿真设备"}
HEALTHY = {"en": "nothing stands in the way", "zh": "未发现问题"}


def doctor(
    names: Annotated[
        list[str] | None, typer.Argument(help="Backends to look at; all that are installed if none.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="en or zh; by default what LC_ALL, LC_MESSAGES or LANG ask for.")
    ] = None,
    set: Assignments = None,
    json: Json = False,
) -> int:
    """Say for every backend what is missing or does not fit, and what to install.

    The exit status is 1 if a backend that was asked for by name has no real device.
    """
    from dataclasses import asdict

    from xinheng.core.errors import SettingsError
    from xinheng.core.plugins import PluginManager

    from ..output import print_json

    spoken = language or _preferred(os.environ)
    if spoken not in LANGUAGES:
        raise SettingsError(f"--language {spoken!r} is not one of {', '.join(LANGUAGES)}")
    runtime, _ = settings(set)
    manager = PluginManager(disabled=runtime.plugins_disabled)
    records = [manager.diagnosed(name) for name in dict.fromkeys(names or manager.names)]
    if json:
        print_json({"packages": _packages(), "backends": [asdict(record) for record in records]})
    else:
        _print(records, spoken)
    return 1 if names and not all(map(_real, records)) else 0


def _preferred(environ: Mapping[str, str]) -> str:
    """The language of messages that the environment asks for, as POSIX orders its variables."""
    asked = next((environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(name)), "")
    return "zh" if asked.lower().startswith("zh") else "en"


def _real(record: PluginRecord) -> bool:
    return any(not info.emulated for info in record.devices)


def _packages() -> dict[str, str]:
    """Versions of the installed packages that backends are built on; nothing is imported."""
    from importlib import metadata

    found = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith(("torch", "mindspore", "triton", "numpy", "onnxruntime", "xinheng")):
            found[name] = distribution.version
    return dict(sorted(found.items()))


def _print(records: Sequence[PluginRecord], language: str) -> None:
    import platform

    from ..output import print_table

    print(f"Python {platform.python_version()}, {platform.platform()}")
    print(", ".join(f"{name} {version}" for name, version in _packages().items()))
    print()
    print_table(HEADS[language], [row for record in records for row in _rows(record, language)])


def _rows(record: PluginRecord, language: str) -> list[tuple[Any, ...]]:
    """A line on the state of a backend, and one per finding."""
    status = STATUS[record.status] if language == "zh" else record.status
    real = [info.spec for info in record.devices if not info.emulated]
    if record.devices and not real:
        status = EMULATED[language]
    told = ", ".join(real) or ("" if record.findings or record.devices else record.error or "")
    rows: list[tuple[Any, ...]] = [
        (record.name, status, told, "" if record.findings or not real else HEALTHY[language])
    ]
    return rows + [("", finding.code, *finding.told(language)) for finding in record.findings]
