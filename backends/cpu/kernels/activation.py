"""Native gated activations, computed in float64 and rounded once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from xinheng.core.errors import DeviceError

from .library import Library, check, matrix_of, type_code

SILU, GELU = 0, {"tanh": 1, "none": 2}
"""Codes of `Function` in csrc/activation.cpp."""


def _gated(library: Library, function: int, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    kind = type_code(gate)
    if up.dtype is not gate.dtype:
        raise DeviceError(f"gated activation: gate is {gate.dtype}, up is {up.dtype}")
    if up.shape != gate.shape:
        shape = np.broadcast_shapes(gate.shape, up.shape)
        gate, up = gate.expand(shape), up.expand(shape)
    out = torch.empty(gate.shape, dtype=gate.dtype)
    gate, rows, gate_stride = matrix_of(gate)
    up, _, up_stride = matrix_of(up)
    result = library.gated(
        function,
        gate.data_ptr(),
        up.data_ptr(),
        kind,
        rows,
        gate.shape[1],
        gate_stride,
        up_stride,
        out.data_ptr(),
    )
    check(result, "gated activation")
    return out


def silu_kernel(library: Library) -> Callable[..., torch.Tensor]:
    """The kernel of `silu_and_mul`."""

    def silu_and_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return _gated(library, SILU, gate, up)

    return silu_and_mul


def gelu_kernel(library: Library) -> Callable[..., torch.Tensor]:
    """The kernel of `gelu_and_mul`."""

    def gelu_and_mul(gate: torch.Tensor, up: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
        return _gated(library, GELU[approximate], gate, up)

    return gelu_and_mul
