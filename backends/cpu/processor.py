"""What the processor is called."""

from __future__ import annotations

import platform


def processor_name() -> str:
    """The processor's own name for itself, or its architecture."""
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
