"""What a reader of measurements has to know of the machine they were taken on."""

from __future__ import annotations

import os
import platform
from typing import Any

from xinheng.core.hal.host import host_memory


def machine() -> dict[str, Any]:
    """Processor, processors that this process may run on, bytes of memory, system and Python."""
    return {
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": host_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """The processor's own name for itself, with family and model where only those tell it from others."""
    fields: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                fields.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    name = fields.get("model name") or platform.processor() or platform.machine()
    numbered = "cpu family" in fields and "model" in fields
    return f"{name} (family {fields['cpu family']}, model {fields['model']})" if numbered else name
