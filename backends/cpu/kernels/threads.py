"""How many threads kernels should use: the physical cores that this process may run on, within its CPU quota."""

from __future__ import annotations

import os
from pathlib import Path


def available_threads(root: Path = Path("/")) -> int:
    """Physical cores among the allowed processors, no more than the control group's quota; at least 1.

    `root` is where `/sys` and `/proc` are looked up.
    """
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    limit = _quota(root)
    cores = _cores(root, allowed)
    return max(1, cores if limit is None else min(cores, int(limit)))


def _cores(root: Path, processors: list[int]) -> int:
    """Processors that share no core with each other, by the kernel's sibling lists."""
    cores = set()
    for number in processors:
        siblings = root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        cores.add(_read(siblings) or str(number))
    return len(cores)


def _quota(root: Path) -> float | None:
    """The smallest CPU quota of this process's control group and its parents, in processors; None if unlimited."""
    groups = root / "sys/fs/cgroup"
    own = [line.split(":", 2) for line in (_read(root / "proc/self/cgroup") or "").splitlines()]
    paths = {group: Path(path.lstrip("/")) for _, group, path in (fields for fields in own if len(fields) == 3)}
    found = [_unified(groups / folder) for folder in _upwards(paths.get("", Path()))]
    old = next((path for names, path in paths.items() if "cpu" in names.split(",")), Path())
    found += [_legacy(groups / "cpu" / folder) for folder in _upwards(old)]
    limits = [limit for limit in found if limit is not None]
    return min(limits) if limits else None


def _upwards(path: Path) -> list[Path]:
    return [path, *path.parents]


def _unified(folder: Path) -> float | None:
    quota, _, period = (_read(folder / "cpu.max") or "max").partition(" ")
    return None if quota == "max" or not period else int(quota) / int(period)


def _legacy(folder: Path) -> float | None:
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
