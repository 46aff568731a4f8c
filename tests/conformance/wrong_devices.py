"""Devices that are right but for one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xinheng.core.hal import KernelRegistry, ReferenceDevice
from xinheng.core.hal.reference import ReferenceKernel, reference_kernels
from xinheng.core.ir import Op
from xinheng.core.ops import OPSET

Program = Callable[..., Any]
"""An op's reference, or something else with its signature."""


class Wrong:
    """An op that has another meaning on one device; everything else about it is the same."""

    def __init__(self, op: Op[..., Any], program: Program) -> None:
        self.op, self.reference = op, program


def device_with(**programs: Program) -> ReferenceDevice:
    """A device that computes some ops by other programs."""
    device = ReferenceDevice("test:wrong", "a device with wrong kernels")
    device.kernels = KernelRegistry(reference_kernels(device))
    for name, program in programs.items():
        wrong: Any = Wrong(OPSET[name], program)
        device.kernels.register(OPSET[name], name="wrong", priority=1)(ReferenceKernel(wrong))
    return device


def eps_outside(x: Any, weight: Any, *, eps: float) -> Any:
    """An RMS norm that adds eps to the root instead of under it."""
    return x / (np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True)) + eps) * weight


def low_silu(gate: Any, up: Any) -> Any:
    """A gated SiLU whose sigmoid has eight bits."""
    sigmoid = 1 / (1 + np.exp(-gate))
    return gate * np.rint(256 * sigmoid) / 256 * up


def window_of(span: int) -> Program:
    """Paged attention that sees `span` keys only."""

    def attention(*operands: Any, window: int | None = None, **attributes: Any) -> Any:
        return OPSET["paged_attention"].reference(*operands, window=min(span, window or span), **attributes)

    return attention
