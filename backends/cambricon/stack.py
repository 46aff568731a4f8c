"""What a Cambricon card needs, and which of it is missing here; looks at files and names, imports nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from xinheng.core.hal import Finding

from .._vendors import shown

MASK = "MLU_VISIBLE_DEVICES"
TORCH_OF = {"1.28": "2.7"}
"""Which torch a release of torch_mlu was built for, where the vendor says so."""
Installed = Callable[[str], str | None]


def installed(package: str) -> str | None:
    """The version of a package that is there, without importing it; None if it is not."""
    if find_spec(package) is None:
        return None
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def cards(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> list[int]:
    """Physical numbers of the cards that this process may use, in the order in which torch_mlu numbers them.

    As for other vendors, the mask ends at the first entry that is no card.
    """
    names = (path.name for path in (root / "dev").glob("cambricon_dev*"))
    there = sorted(int(m[1]) for name in names if (m := re.fullmatch(r"cambricon_dev(\d+)", name)))
    if MASK not in environ:
        return there
    entries = environ[MASK].split(",")
    return list(shown(there, (int(entry) if entry.strip().isdigit() else None for entry in entries)))


def findings(
    root: Path = Path("/"), environ: Mapping[str, str] = os.environ, package: Installed = installed
) -> list[Finding]:
    """What stands in the way of a card, from the hardware up: driver, rights, Neuware, torch_mlu, torch_mlu_ops."""
    return [*_driver(root, environ), *_neuware(root, environ), *_framework(package)]


def _driver(root: Path, environ: Mapping[str, str]) -> list[Finding]:
    present = cards(root, {})
    if not present:
        return [
            Finding(
                "cambricon.driver-missing",
                "there is no Cambricon card with a driver (no /dev/cambricon_dev0)",
                "install the driver of the card, check it with cnmon, or pass its device files into the container",
                (
                    "没有装好驱动的寒武纪卡（缺少 /dev/cambricon_dev0）",
                    "安装该卡的驱动并用 cnmon 检查；在容器中则把设备文件映射进来",
                ),
            )
        ]
    if not cards(root, environ):
        text = f"{MASK}={environ[MASK]} leaves no card visible; there are {', '.join(map(str, present))}"
        chinese = (f"{MASK}={environ[MASK]} 屏蔽了所有卡；本机有 {', '.join(map(str, present))}", f"修改 {MASK}")
        return [Finding("cambricon.masked", text, f"change or unset {MASK}", chinese)]
    closed = [f"/dev/cambricon_dev{n}" for n in cards(root, environ) if not _open(root / f"dev/cambricon_dev{n}")]
    if not closed:
        return []
    text = f"this user may not read and write {closed[0]}"
    chinese = (f"当前用户没有 {closed[0]} 的读写权限", "把用户加入该设备文件所属的组，或在容器中放开设备权限")
    remedy = "add the user to the group of the device file, or let the container use the device"
    return [Finding("cambricon.permission", text, remedy, chinese)]


def _open(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _neuware(root: Path, environ: Mapping[str, str]) -> list[Finding]:
    home = environ.get("NEUWARE_HOME", "/usr/local/neuware")
    if (root / home.lstrip("/") / "lib64/libcnrt.so").exists():
        return []
    text, remedy = (
        f"Neuware is not installed: there is no {home}/lib64/libcnrt.so",
        "install Neuware or set NEUWARE_HOME",
    )
    chinese = (f"没有安装 Neuware：缺少 {home}/lib64/libcnrt.so", "安装 Neuware，或设置 NEUWARE_HOME")
    return [Finding("cambricon.neuware-missing", text, remedy, chinese)]


def _framework(package: Installed) -> list[Finding]:
    plugin, torch = package("torch_mlu"), package("torch")
    if plugin is None:
        text, remedy = "torch_mlu is not installed", "install the vendor's torch_mlu and the torch it was built for"
        return [
            Finding(
                "cambricon.torch-mlu-missing",
                text,
                remedy,
                ("没有安装 torch_mlu", "安装厂商提供的 torch_mlu 及其配套的 torch"),
            )
        ]
    found = []
    wanted = TORCH_OF.get(".".join(plugin.split("+")[0].split(".")[:2]))
    if torch is None or (wanted is not None and not torch.startswith(f"{wanted}.")):
        need = wanted or "the version it was built for"
        text = f"torch_mlu {plugin} does not fit torch {torch or '(missing)'}"
        chinese = (
            f"torch_mlu {plugin} 与 torch {torch or '（未安装）'} 不配套",
            f"安装 torch {wanted or '的配套版本'}",
        )
        found.append(Finding("cambricon.torch-pair", text, f"install torch {need}", chinese))
    if package("torch_mlu_ops") is None:
        text = "torch_mlu_ops is not installed; kernels of plain torch run in its place, and slower"
        chinese = ("没有安装 torch_mlu_ops，改用较慢的普通 torch 算子", "安装与 torch_mlu 配套的 torch_mlu_ops")
        remedy = "install the vendor's torch_mlu_ops for this torch_mlu"
        found.append(Finding("cambricon.torch-mlu-ops-missing", text, remedy, chinese))
    return found


def driver_version(root: Path = Path("/")) -> str | None:
    """The version that the kernel module tells; None if it tells none."""
    try:
        return (root / "sys/module/cambricon_drv/version").read_text().strip()
    except OSError:
        return None
