"""What an Ascend card needs on this machine, and which of it is missing; looks at files and names, imports nothing.

A `Machine` is where to look: the root of the file system, the environment, and the versions of installed packages. Each
finding has a stable code; the first is the most serious.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from xinheng.core.hal import Finding

from .._vendors import shown
from .chips import Chip, chip_on_bus

TOOLKIT = "usr/local/Ascend/ascend-toolkit"
"""Where the CANN installer puts the toolkit unless it is told otherwise, below the root of the file system."""
DRIVER = "usr/local/Ascend/driver/version.info"
LIBRARY = "libascendcl.so"
NEEDED = (LIBRARY, "libhccl.so", "libacl_op_compiler.so", "libge_runner.so", "libgraph.so", "libopapi.so")
"""What torch_npu links to, and the library of its operators."""
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"


def installed(package: str) -> str | None:
    """The version of an installed package, read off its metadata."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Machine:
    """Where to look."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    version_of: Callable[[str], str | None] = installed

    @property
    def cards(self) -> tuple[int, ...]:
        """The numbers of the cards that the driver shows, whatever a mask hides."""
        found = (re.fullmatch(r"davinci(\d+)", path.name) for path in (self.root / "dev").glob("davinci*"))
        return tuple(sorted(int(match[1]) for match in found if match))

    @property
    def has_driver(self) -> bool:
        return (self.root / "dev/davinci_manager").exists() and bool(self.cards)

    @property
    def mask(self) -> tuple[int, ...] | None:
        """The cards that the mask names, in its order; None without a mask, empty for one that cannot be read."""
        written = self.environ.get(VISIBLE)
        if written is None:
            return None
        parts = [part.strip() for part in written.split(",")]
        return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()

    @property
    def visible(self) -> tuple[int, ...]:
        """The physical number of each card that a process sees, by its own number: `ascend:0` is the first."""
        mask = self.mask
        if mask is None:
            return self.cards
        return shown(self.cards, mask)

    @property
    def driver_version(self) -> str | None:
        return _version_in(self.root / DRIVER)

    @property
    def cann_version(self) -> str | None:
        home = self.environ.get("ASCEND_HOME_PATH")
        folders = [Path(home)] if home else sorted((self.root / TOOLKIT).glob("*"), reverse=True)
        names = ("version.cfg", "compiler/version.info", "runtime/version.info")
        found = (_version_in(folder / name) for folder in folders for name in names)
        return next((told for told in found if told), None)

    @property
    def library_folders(self) -> list[Path]:
        return [Path(entry) for entry in self.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]

    @property
    def chip(self) -> Chip | None:
        """The generation of the cards by their identifiers on the PCI bus; None if no known one is there."""
        for folder in sorted((self.root / "sys/bus/pci/devices").glob("*")):
            if _text(folder / "vendor") == "0x19e5":
                chip = chip_on_bus(_text(folder / "device").removeprefix("0x"))
                if chip is not None:
                    return chip
        return None

    def find_library(self, name: str) -> bool:
        return any((folder / name).exists() for folder in self.library_folders)


def findings(machine: Machine | None = None, runtime: str = "torch_npu") -> list[Finding]:
    """What stands in the way of a card, from the hardware up: driver, mask, CANN, framework, settings."""
    machine = machine or Machine()
    told = [*_driver(machine), *_mask(machine), *_cann(machine)]
    told += _torch(machine) if runtime == "torch_npu" else _mindspore(machine)
    return [*told, *_settings(machine)]


def blocking(found: list[Finding]) -> list[Finding]:
    """Those that make opening a card impossible."""
    return [finding for finding in found if finding.code not in _ADVICE]


_ADVICE = {"ascend.atb-missing", "ascend.launch-blocking", "ascend.allocator-settings"}


def _driver(machine: Machine) -> list[Finding]:
    if machine.has_driver:
        closed = [c for c in machine.cards if not os.access(machine.root / f"dev/davinci{c}", os.R_OK | os.W_OK)]
        if not closed:
            return []
        names = ", ".join(f"/dev/davinci{card}" for card in closed)
        return [
            Finding(
                "ascend.permission",
                f"this user may not open {names}",
                "add the user to group HwHiAiUser, or pass the device files into the container with read and write",
                (f"当前用户无权打开 {names}", "把用户加入 HwHiAiUser 组；在容器中则以读写方式映射设备文件"),
            )
        ]
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


def _mask(machine: Machine) -> list[Finding]:
    if machine.mask is None or not machine.has_driver or machine.visible == machine.mask != ():
        return []
    cards, written = ", ".join(map(str, machine.cards)), machine.environ[VISIBLE]
    return [
        Finding(
            "ascend.device-mask",
            f"{VISIBLE}={written} shows {len(machine.visible)} cards; the cards of this machine are {cards}",
            f"unset {VISIBLE}, or name some of {cards} once each, separated by commas",
            (
                f"{VISIBLE}={written} 只露出 {len(machine.visible)} 张卡；本机的卡为 {cards}",
                f"取消 {VISIBLE}，或以逗号分隔写出 {cards} 中的编号，每个一次",
            ),
        )
    ]


def _cann(machine: Machine) -> list[Finding]:
    script = f"/{TOOLKIT}/set_env.sh"
    home = machine.environ.get("ASCEND_HOME_PATH")
    if not machine.find_library(LIBRARY):
        if home or list((machine.root / TOOLKIT).glob(f"*/lib64/{LIBRARY}")):
            text = f"CANN is installed, but {LIBRARY} is not on LD_LIBRARY_PATH"
            chinese = (f"CANN 已安装，但 LD_LIBRARY_PATH 中没有 {LIBRARY}", f"在当前 shell 中执行 source {script}")
            return [Finding("ascend.cann-environment", text, f"source {script} in this shell", chinese)]
        text = f"CANN is not installed: {LIBRARY} is neither on LD_LIBRARY_PATH nor under /{TOOLKIT}"
        chinese = (
            f"没有安装 CANN：LD_LIBRARY_PATH 与 /{TOOLKIT} 下都没有 {LIBRARY}",
            f"安装 CANN toolkit 并执行 source {script}",
        )
        return [Finding("ascend.cann-missing", text, f"install the CANN toolkit and source {script}", chinese)]
    if not home:
        text = "the environment of CANN is incomplete: ASCEND_HOME_PATH is not set"
        chinese = ("CANN 的环境不完整：没有设置 ASCEND_HOME_PATH", f"在当前 shell 中执行 source {script}")
        return [Finding("ascend.cann-environment", text, f"source {script} in this shell", chinese)]
    return [*_libraries(machine), *_atb(machine)]


def _libraries(machine: Machine) -> list[Finding]:
    missing = [name for name in NEEDED if not machine.find_library(name)]
    if not missing:
        return []
    names = ", ".join(missing)
    return [
        Finding(
            "ascend.cann-incomplete",
            f"CANN lacks {names} on LD_LIBRARY_PATH",
            "install the toolkit and the kernels package (ops) of the same CANN version for this chip",
            (f"LD_LIBRARY_PATH 中的 CANN 缺少 {names}", "安装同一 CANN 版本的 toolkit 与本芯片的 kernels（ops）包"),
        )
    ]


def _atb(machine: Machine) -> list[Finding]:
    if machine.find_library("libatb.so") or (machine.chip is not None and not machine.chip.atb):
        return []
    script = "/usr/local/Ascend/nnal/atb/set_env.sh"
    return [
        Finding(
            "ascend.atb-missing",
            "libatb.so is not on LD_LIBRARY_PATH; attention on Atlas inference cards (310P) needs it",
            f"install the nnal package of CANN and source {script}",
            ("LD_LIBRARY_PATH 中没有 libatb.so；推理卡 310P 的注意力算子需要它", f"安装 nnal 包并执行 source {script}"),
        )
    ]


def _torch(machine: Machine) -> list[Finding]:
    plugin, torch = machine.version_of("torch_npu"), machine.version_of("torch")
    if plugin is None:
        remedy = f"pip install torch_npu=={_minor(torch)}.*" if torch else "pip install 'xinheng[ascend]'"
        text, chinese = "torch_npu is not installed", "没有安装 torch_npu"
        return [Finding("ascend.framework-missing", text, remedy, (chinese, remedy))]
    if torch is None:
        remedy = f"pip install torch=={_minor(plugin)}.*"
        text = f"torch_npu {plugin} is installed and torch is not"
        return [Finding("ascend.torch-missing", text, remedy, (f"已安装 torch_npu {plugin}，但没有安装 torch", remedy))]
    if _minor(torch) != _minor(plugin):
        remedy = f"pip install torch_npu=={_minor(torch)}.* or torch=={_minor(plugin)}.*"
        text = f"torch_npu {plugin} does not fit torch {torch}: their first two numbers must be the same"
        chinese = f"torch_npu {plugin} 与 torch {torch} 不匹配：前两个版本号必须相同"
        return [Finding("ascend.torch-pair", text, remedy, (chinese, remedy))]
    if re.search(r"\+(cu|rocm)\d", torch):
        remedy = f"pip install torch=={torch.split('+')[0]}+cpu --index-url https://download.pytorch.org/whl/cpu"
        text = f"torch {torch} is built for another accelerator, beside which torch_npu does not load (ERR00007)"
        chinese = f"torch {torch} 为其他加速器构建，torch_npu 无法与之共存（ERR00007）"
        return [Finding("ascend.torch-build", text, remedy, (chinese, remedy))]
    return []


def _mindspore(machine: Machine) -> list[Finding]:
    if machine.version_of("mindspore") is not None:
        return []
    remedy = "pip install 'xinheng[mindspore]'"
    return [Finding("ascend.framework-missing", "mindspore is not installed", remedy, ("没有安装 mindspore", remedy))]


def _settings(machine: Machine) -> list[Finding]:
    told = []
    if machine.environ.get("ASCEND_LAUNCH_BLOCKING") == "1":
        text = "ASCEND_LAUNCH_BLOCKING=1 makes every call wait, and no run can be captured"
        chinese = ("ASCEND_LAUNCH_BLOCKING=1 使每次调用都同步等待，且无法捕获图", "unset ASCEND_LAUNCH_BLOCKING")
        told.append(Finding("ascend.launch-blocking", text, "unset ASCEND_LAUNCH_BLOCKING", chinese))
    allocator = machine.environ.get("PYTORCH_NPU_ALLOC_CONF", "")
    if "expandable_segments:True" in allocator and "max_split_size_mb" in allocator:
        text = "PYTORCH_NPU_ALLOC_CONF sets both expandable_segments and max_split_size_mb, which exclude each other"
        remedy = "keep only expandable_segments:True"
        chinese = (
            "PYTORCH_NPU_ALLOC_CONF 同时设置了互斥的 expandable_segments 与 max_split_size_mb",
            f"只保留 {remedy[10:]}",
        )
        told.append(Finding("ascend.allocator-settings", text, remedy, chinese))
    return told


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _version_in(path: Path) -> str | None:
    """The version in a file of lines `name=value`, the first that looks like one."""
    match = re.search(r"^\W*(?:package_)?version\s*=\s*\W*([\w.]+)", _text(path), re.IGNORECASE | re.MULTILINE)
    return match[1] if match else None
