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
        )
    ]


def _cann(root: Path, environ: Mapping[str, str]) -> list[Finding]:
    script = f"/{TOOLKIT}/set_env.sh"
    folders = [Path(entry) for entry in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    if any((folder / LIBRARY).exists() for folder in folders):
        if environ.get("ASCEND_HOME_PATH"):
            return []
        text = "the environment of CANN is incomplete: ASCEND_HOME_PATH is not set"
        return [Finding("ascend.cann-environment", text, f"source {script} in this shell")]
    if list((root / TOOLKIT).glob(f"*/lib64/{LIBRARY}")) or environ.get("ASCEND_HOME_PATH"):
        text = f"CANN is installed, but {LIBRARY} is not on LD_LIBRARY_PATH"
        return [Finding("ascend.cann-environment", text, f"source {script} in this shell")]
    text = f"CANN is not installed: {LIBRARY} is neither on LD_LIBRARY_PATH nor under /{TOOLKIT}"
    return [Finding("ascend.cann-missing", text, f"install the CANN toolkit and source {script}")]


def _framework() -> list[Finding]:
    if find_spec("torch_npu") is not None or find_spec("mindspore") is not None:
        return []
    remedy = "pip install 'xinheng[ascend]' or 'xinheng[mindspore]'"
    return [Finding("ascend.framework-missing", "neither torch_npu nor mindspore is installed", remedy)]
