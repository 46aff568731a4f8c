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
    found = [*_torch(stack)]
    if stack.driver is None:
        text = "there is no NVIDIA card with a driver (libnvidia-ml.so.1 is missing or finds no driver)"
        remedy = "install the NVIDIA driver; in a container, start it with the NVIDIA container toolkit (--gpus all)"
        return [Finding("cuda.driver-missing", text, remedy), *found]
    if not stack.driver.cards:
        text = f"driver {stack.driver.version} finds no card"
        return [Finding("cuda.no-card", text, "check the card with lspci and dmesg"), *found]
    if not stack.cards:
        text = f"CUDA_VISIBLE_DEVICES={stack.hidden!r} hides all of the {len(stack.driver.cards)} cards"
        found = [Finding("cuda.devices-hidden", text, "unset it, or list the indices of cards, such as 0,1"), *found]
    if stack.torch and stack.torch[0] > stack.driver.cuda[0]:
        needed, known = ".".join(map(str, stack.torch)), ".".join(map(str, stack.driver.cuda))
        text = f"torch was built for CUDA {needed}, and driver {stack.driver.version} knows CUDA {known} at most"
        remedy = f"install a newer driver, or a torch built for CUDA {stack.driver.cuda[0]} from download.pytorch.org"
        found = [Finding("cuda.driver-too-old", text, remedy), *found]
    found += [_too_low(f"cuda:{i}", card) for i, card in enumerate(stack.cards) if card.capability < OLDEST]
    if not stack.triton:
        text = "triton is not installed; a card then runs kernels of torch only, which are slower and promise less"
        found.append(Finding("cuda.triton-missing", text, "pip install 'xinheng[cuda]'"))
    return found


def _torch(stack: Stack) -> list[Finding]:
    if stack.torch is None:
        return [Finding("cuda.torch-missing", "torch is not installed", "pip install 'xinheng[cuda]'")]
    if not stack.torch:
        text = "the installed torch is built without CUDA"
        remedy = "install a CUDA build: pip install torch --index-url https://download.pytorch.org/whl/cu128"
        return [Finding("cuda.torch-cpu-build", text, remedy)]
    return []


def _too_low(spec: str, card: Card) -> Finding:
    lowest = ".".join(map(str, OLDEST))
    has = ".".join(map(str, card.capability))
    text = f"{spec} ({card.name}) has compute capability {has}, the kernels need {lowest}"
    return Finding("cuda.capability-too-low", text, "use a card of the Ampere generation or newer, or another device")


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
