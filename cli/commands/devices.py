"""`xinheng devices`: which devices there are, and why others are not."""

from __future__ import annotations

import sys

from ..options import Assignments, Json, settings


def devices(set: Assignments = None, json: Json = False) -> None:
    """List every backend plugin with its devices, or the reason why it has none."""
    from dataclasses import asdict

    from xinheng.core.plugins import PluginManager

    from ..output import print_json, print_table, size_text

    runtime, _ = settings(set)
    records = PluginManager(disabled=runtime.plugins_disabled).records()
    if json:
        print_json([asdict(record) for record in records])
        return
    rows = []
    for record in records:
        for info in record.devices:
            memory = size_text(info.memory) if info.memory else ""
            status = "emulated" if info.emulated else record.status
            rows.append((info.spec, info.name, memory, info.driver or "", status, "", ""))
        if not record.devices:
            said = record.findings[0] if record.findings else None
            told = (said.text, said.remedy) if said else (record.error or "", "")
            rows.append((record.name, "", "", "", record.status, *told))
    print_table(("device", "name", "memory", "driver", "status", "remark", "remedy"), rows)
    if sys.stdout.isatty() and any(len(record.findings) > 1 for record in records):
        print("\nxinheng doctor tells all that is missing")
