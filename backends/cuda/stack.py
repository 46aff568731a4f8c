"""What a card needs on this machine, and which of it is missing; imports neither torch nor Triton."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from xinheng.core.hal import Finding

from .driver import Card, Driver, ask_driver, visible

OLDEST = (8, 0)
"""The least compute capability that the kernels are compiled for."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The software of this machine.

    Attributes:
        driver: what answers for the cards; None without one.
        torch: the CUDA version that torch was built for, as (major, minor); () for another build, None without torch.
        triton: whether it is installed.
        hidden: the value of CUDA_VISIBLE_DEVICES, None if it is not set.
        cards: those that this process sees.
    """

    driver: Driver | None
    torch: tuple[int, ...] | None
    triton: bool
    hidden: str | None
    cards: tuple[Card, ...]


def look(environ: Mapping[str, str] = os.environ) -> Stack:
    """The stack of this machine."""
    driver = ask_driver()
    cards = visible(driver.cards, environ) if driver else ()
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    return Stack(driver, built_for(), find_spec("triton") is not None, hidden, cards)


def built_for(folder: Path | None = None) -> tuple[int, ...] | None:
    """The CUDA version in torch's own version file; `folder` is that of torch, by default the installed one."""
    if folder is None:
        found = find_spec("torch")
        if found is None or found.origin is None:
            return None
        folder = Path(found.origin).parent
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ()
    version = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.(\d+)", text, re.MULTILINE)
    return (int(version[1]), int(version[2])) if version else ()


def findings(stack: Stack) -> list[Finding]:
    """What stands in the way of a card, from the hardware up."""
    found = _torch(stack)
    if stack.driver is None:
        return [NO_DRIVER, *found]
    if not stack.driver.cards:
        text = f"driver {stack.driver.version} finds no card"
        chinese = f"驱动 {stack.driver.version} 未发现显卡", "用 lspci 和 dmesg 检查显卡"
        return [Finding("cuda.no-card", text, "check the card with lspci and dmesg", chinese), *found]
    if stack.torch and stack.torch[0] > stack.driver.cuda[0]:
        found = [_too_old(stack.driver, stack.torch), *found]
    if not stack.cards:
        found = [_hidden(stack.hidden, len(stack.driver.cards)), *found]
    found += [_too_low(f"cuda:{i}", card) for i, card in enumerate(stack.cards) if card.capability < OLDEST]
    return found if stack.triton else [*found, NO_TRITON]


NO_DRIVER = Finding(
    "cuda.driver-missing",
    "there is no NVIDIA card with a driver (libnvidia-ml.so.1 is missing or finds no driver)",
    "install the NVIDIA driver; in a container, start it with the NVIDIA container toolkit (--gpus all)",
    (
        "没有带驱动的 NVIDIA 显卡（缺少 libnvidia-ml.so.1，或它找不到驱动）",
        "安装 NVIDIA 驱动；容器需用 NVIDIA container toolkit 启动（--gpus all）",
    ),
)
NO_TRITON = Finding(
    "cuda.triton-missing",
    "triton is not installed; a card then runs kernels of torch only, which are slower and promise less",
    "pip install 'xinheng[cuda]'",
    ("未安装 triton；显卡只能使用 torch 的算子，速度较慢，保证也较少", "pip install 'xinheng[cuda]'"),
)
NO_TORCH = Finding(
    "cuda.torch-missing",
    "torch is not installed",
    "pip install 'xinheng[cuda]'",
    ("未安装 torch", "pip install 'xinheng[cuda]'"),
)
CPU_TORCH = Finding(
    "cuda.torch-cpu-build",
    "the installed torch is built without CUDA",
    "install a CUDA build: pip install torch --index-url https://download.pytorch.org/whl/cu128",
    (
        "已安装的 torch 不带 CUDA",
        "安装带 CUDA 的版本：pip install torch --index-url https://download.pytorch.org/whl/cu128",
    ),
)


def _torch(stack: Stack) -> list[Finding]:
    return [NO_TORCH] if stack.torch is None else [] if stack.torch else [CPU_TORCH]


def _too_old(driver: Driver, torch: tuple[int, ...]) -> Finding:
    needed, known = ".".join(map(str, torch)), ".".join(map(str, driver.cuda))
    return Finding(
        "cuda.driver-too-old",
        f"torch was built for CUDA {needed}, and driver {driver.version} knows CUDA {known} at most",
        f"install a newer driver, or a torch built for CUDA {driver.cuda[0]} from download.pytorch.org",
        (
            f"torch 是为 CUDA {needed} 编译的，而驱动 {driver.version} 最高支持 CUDA {known}",
            f"升级驱动，或从 download.pytorch.org 安装为 CUDA {driver.cuda[0]} 编译的 torch",
        ),
    )


def _hidden(listed: str | None, count: int) -> Finding:
    return Finding(
        "cuda.devices-hidden",
        f"CUDA_VISIBLE_DEVICES={listed!r} hides all of the {count} cards",
        "unset it, or list the indices of cards, such as 0,1",
        (f"CUDA_VISIBLE_DEVICES={listed!r} 隐藏了全部 {count} 块显卡", "取消该变量，或写显卡编号，例如 0,1"),
    )


def _too_low(spec: str, card: Card) -> Finding:
    lowest, has = (".".join(map(str, version)) for version in (OLDEST, card.capability))
    return Finding(
        "cuda.capability-too-low",
        f"{spec} ({card.name}) has compute capability {has}, the kernels need {lowest}",
        "use a card of the Ampere generation or newer, or another device",
        (f"{spec} ({card.name}) 的计算能力为 {has}，算子需要 {lowest}", "使用 Ampere 或更新的显卡，或其他设备"),
    )


HINDRANCES = frozenset(
    {
        "cuda.driver-missing",
        "cuda.no-card",
        "cuda.devices-hidden",
        "cuda.driver-too-old",
        "cuda.torch-missing",
        "cuda.torch-cpu-build",
    }
)
"""Findings with which no card can be opened."""


def usable(stack: Stack) -> bool:
    """Whether there are cards that could be opened."""
    return not any(finding.code in HINDRANCES for finding in findings(stack))
