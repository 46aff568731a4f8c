"""The memory of the machine that this process runs on."""

from __future__ import annotations

import os

from .device import MemoryStats


def host_memory() -> MemoryStats:
    """Memory of this machine from /proc/meminfo, limited by the control group where there is a limit."""
    page = os.sysconf("SC_PAGE_SIZE")
    total, available = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    try:
        with open("/proc/meminfo") as lines:
            fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        total, available = fields["MemTotal"], fields["MemAvailable"]
    except (OSError, KeyError):
        pass
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                limit = file.read().strip()
        except OSError:
            continue
        if limit.isdigit() and int(limit) < total:
            total, available = int(limit), min(available, int(limit))
    return MemoryStats(total, available)
