"""Triton's interpreter: kernels as numpy programs, on tensors of the host. It is chosen once per process.

A kernel is either compiled or interpreted from the moment its module is imported, so that one process cannot do both.
"""

from __future__ import annotations

import os
import sys

from xinheng.core.errors import DeviceError

VARIABLE = "TRITON_INTERPRET"
KERNELS = __name__.rpartition(".")[0] + ".kernels"


def interpreting() -> bool:
    """Whether kernels of this process are interpreted."""
    return os.environ.get(VARIABLE, "0").lower() in ("1", "true", "on", "yes", "y")


def demand(interpreted: bool, spec: str) -> None:
    """Make kernels of this process interpreted, or compiled.

    Raises:
        DeviceError: they are the other already.
    """
    if interpreting() == interpreted:
        return
    if interpreted and KERNELS not in sys.modules:
        os.environ[VARIABLE] = "1"
        return
    made = "compiles its Triton kernels" if interpreted else f"interprets its Triton kernels ({VARIABLE} is set)"
    raise DeviceError(
        f"{spec}: this process {made}, and one process cannot do both; set engine.runner to 'subprocess', or open this "
        "device in a process of its own"
    )
