"""What an Ascend card needs on this machine, and which of it is missing; looks at files and names, imports nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from xinheng.core.hal import Finding

LIBRARY = "libascendcl.so"
TOOLKIT = "usr/local/Ascend/ascend-toolkit"
"""Where the CANN installer puts the toolkit unless it is told otherwise, below the root of the file system."""

NO_CARDS = Finding(
    "ascend.no-card-runtime",
    "this release drives no Ascend card yet, neither by torch_npu nor by MindSpore",
    "use ascend:cpu@mindspore, which runs the backend on MindSpore's CPU target, or another device",
    (
        "本版本尚不能驱动昇腾卡（torch_npu 与 MindSpore 均不能）",
        "使用 ascend:cpu@mindspore（MindSpore 的 CPU 目标）或其他设备",
    ),
)


def findings(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """What stands in the way of a card, from the hardware up: driver, CANN, framework, this release."""
    return [*_driver(root), *_cann(root, environ), *_framework(), NO_CARDS]


def _driver(root: Path) -> list[Finding]:
    if (root / "dev/davinci_manager").exists() and any((root / "dev").glob("davinci[0-9]*")):
        return []
    return [
        Finding(
            "ascend.driver-missing",
            "there is no Huawei Ascend card with a driver (no /dev/davinci_manager and /dev/davinci0)",
            "install the driver and firmware of the card, or pass its device files into the container",
            (
                "没有装好驱动的昇腾卡（缺少 /dev/davinci_manager 与 /dev/davinci0）",
                "安装该卡的驱动与固件；在容器中则把设备文件映射进来",
            ),
        )
    ]


def _cann(root: Path, environ: Mapping[str, str]) -> list[Finding]:
    script = f"/{TOOLKIT}/set_env.sh"
    folders = [Path(entry) for entry in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    if any((folder / LIBRARY).exists() for folder in folders):
        if environ.get("ASCEND_HOME_PATH"):
            return []
        text = "the environment of CANN is incomplete: ASCEND_HOME_PATH is not set"
        chinese = ("CANN 的环境不完整：没有设置 ASCEND_HOME_PATH", f"在当前 shell 中执行 source {script}")
        return [Finding("ascend.cann-environment", text, f"source {script} in this shell", chinese)]
    if list((root / TOOLKIT).glob(f"*/lib64/{LIBRARY}")) or environ.get("ASCEND_HOME_PATH"):
        text = f"CANN is installed, but {LIBRARY} is not on LD_LIBRARY_PATH"
        chinese = (f"CANN 已安装，但 LD_LIBRARY_PATH 中没有 {LIBRARY}", f"在当前 shell 中执行 source {script}")
        return [Finding("ascend.cann-environment", text, f"source {script} in this shell", chinese)]
    text = f"CANN is not installed: {LIBRARY} is neither on LD_LIBRARY_PATH nor under /{TOOLKIT}"
    chinese = (
        f"没有安装 CANN：LD_LIBRARY_PATH 与 /{TOOLKIT} 下都没有 {LIBRARY}",
        f"安装 CANN toolkit 并执行 source {script}",
    )
    return [Finding("ascend.cann-missing", text, f"install the CANN toolkit and source {script}", chinese)]


def _framework() -> list[Finding]:
    if find_spec("torch_npu") is not None or find_spec("mindspore") is not None:
        return []
    remedy = "pip install 'xinheng[ascend]' or 'xinheng[mindspore]'"
    chinese = ("torch_npu 与 mindspore 都没有安装", remedy)
    return [Finding("ascend.framework-missing", "neither torch_npu nor mindspore is installed", remedy, chinese)]
