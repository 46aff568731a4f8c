"""The examination of a plugin, stage by stage, each in a process of its own that may crash, hang or print."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceSpec
from xinheng.core.plugins import PluginManager, PluginRecord

from ..vendor import own_ledger
from .announced import examine_ledger
from .symptom import Findings, Severity, Symptom

STAGES = ("handling", "kernels")
DOING = {"loading": "importing and probing", "handling": "using", "kernels": "running kernels of"}
PATIENCE = 300.0
"""Seconds that a stage may take."""
LAST = 5
FATAL = frozenset({"device.open", "handling.crash", "handling.hang"})
"""After these there is nothing more to look at."""


class Checkup(BaseModel):
    """What was found out about a plugin.

    Attributes:
        device: the one that was opened; empty if there was none.
        figures: seconds, numbers of modules, kernels and covered ops by name.
    """

    plugin: str
    distribution: str = ""
    version: str = ""
    device: str = ""
    symptoms: list[Symptom] = []
    figures: dict[str, Any] = {}

    @property
    def errors(self) -> int:
        """How many of the symptoms break the contract."""
        return sum(symptom.severity is Severity.ERROR for symptom in self.symptoms)


def check(name: str, device: str | None = None, ledger: Path | None = None, patience: float = PATIENCE) -> Checkup:
    """Examine the plugin of that name.

    Args:
        device: what to open; by default the first device that its probe finds.
        ledger: its file of expectations; by default `expectations.toml` in its package, if there is one.
        patience: seconds that a stage may take.
    """
    record = next((r for r in PluginManager().records(probe=False) if r.name == name), None)
    found = Findings()
    checkup = Checkup(plugin=name)
    if record is None:
        known = ", ".join(PluginManager().names)
        found.error("plugin.missing", f"no installed package registers {name!r} (installed: {known})", "pip install it")
        return checkup.model_copy(update={"symptoms": found.symptoms})
    checkup = checkup.model_copy(update={"distribution": record.distribution, "version": record.version})
    _identity(record, found)
    spec = ""
    if not found.symptoms:
        _stage("loading", name, found, patience)
        examine_ledger(ledger or own_ledger(name), found)
        spec = device or next(iter(found.figures.get("devices", ())), "")
        if not spec and "devices" in found.figures:
            found.note("device.none", f"{name} finds no device here, so nothing else could be looked at")
    for stage in STAGES if spec else ():
        if not any(s.code in FATAL for s in found.symptoms):
            _stage(stage, spec, found, patience)
    return checkup.model_copy(update={"device": spec, "symptoms": found.symptoms, "figures": found.figures})


def _identity(record: PluginRecord, found: Findings) -> None:
    """The name, and whether it is free."""
    if record.status == "failed":
        clash = "both register" in (record.error or "")
        remedy = "uninstall one of them, or give yours another name" if clash else "choose another name"
        found.error("plugin.clash" if clash else "plugin.name", record.error or "", remedy)
        return
    try:
        DeviceSpec.parse(record.name)
    except DeviceError as error:
        found.error("plugin.name", f"users cannot name its devices: {error}", "use lower case letters, digits, - and _")


def _stage(stage: str, subject: str, found: Findings, patience: float) -> None:
    """Run a stage in a process of its own and add what it finds."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "findings.json"
        command = [sys.executable, "-m", f"{__package__}.stage", stage, subject, str(told)]
        try:
            ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience)
        except subprocess.TimeoutExpired:
            text = f"{DOING[stage]} {subject} did not end within {patience:g} s"
            found.error(f"{stage}.hang", text, "look with a debugger at what it waits for")
            return
        printed = (ended.stdout + ended.stderr).strip().splitlines()
        if not told.exists():
            how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"status {ended.returncode}"
            text = f"{DOING[stage]} {subject} ended the process with {how}: {' | '.join(printed[-LAST:]) or 'no word'}"
            found.error(f"{stage}.crash", text, "a plugin must never take the process with it")
            return
        made = Findings.model_validate_json(told.read_text(encoding="utf-8"))
    found.symptoms += made.symptoms
    found.figures |= made.figures
    if stage == "loading" and printed:
        text = f"{DOING[stage]} {subject} prints: {' | '.join(printed[:LAST])}"
        found.warning("import.output", text, "print nothing; `diagnose` is where it belongs")
