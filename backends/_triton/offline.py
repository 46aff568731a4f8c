"""Compiling kernels for cards that are not there: what a launch would run, and what it takes of a multiprocessor."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from xinheng.core.errors import DeviceError

WARP = 32
SHARED = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10}
"""Shared memory that a block may have by compute capability, in bytes (CUDA C++ Programming Guide, table of limits)."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel for one kind of card.

    Attributes:
        kernel: its name.
        cubin: the code.
        shared: bytes of shared memory per block.
        registers: per thread.
        spilled: bytes of local memory per thread, for which there were no registers.
    """

    kernel: str
    cubin: bytes
    shared: int
    registers: int
    spilled: int


class _Absent:
    """A driver for Triton without a card: all it knows is what to compile for."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, WARP)

    def get_current_device(self) -> int:
        return self._capability  # by which compiled kernels are told apart

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compile_launch(
    capability: int, kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], how: dict[str, Any]
) -> Compiled:
    """Compile what a launch on a card of compute capability 80, 90, ... would run.

    Raises:
        DeviceError: Triton or the assembler cannot compile it.
    """
    before = driver._active
    absent: Any = _Absent(capability)
    driver.set_active(absent)
    try:
        made = kernel.warmup(*arguments, grid=grid, **how)
    except Exception as error:
        raise DeviceError(f"{kernel.__name__} does not compile for sm_{capability}: {error}") from error
    finally:
        driver._active = before
    registers, spilled = _resources(made.asm["cubin"])
    return Compiled(kernel.__name__, made.asm["cubin"], made.metadata.shared, registers, spilled)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack that the assembler wrote into the code."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", told.stdout + told.stderr)
    if found is None:
        raise DeviceError(f"cuobjdump does not tell what a kernel takes: {told.stdout}{told.stderr}")
    return int(found[1]), int(found[2])
