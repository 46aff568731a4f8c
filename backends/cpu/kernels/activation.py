"""Native gated activations, computed in float64 and rounded once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xinheng.core.errors import DeviceError

from ..arrays import Array, address
from .library import Library, check, matrix_of, type_code

SILU, GELU = 0, {"tanh": 1, "none": 2}
"""Codes of `Function` in csrc/activation.cpp."""


def _gated(library: Library, function: int, gate: Array, up: Array) -> Array:
    kind = type_code(gate)
    if up.dtype != gate.dtype:
        raise DeviceError(f"gated activation: gate is {gate.dtype}, up is {up.dtype}")
    if up.shape != gate.shape:
        shape = np.broadcast_shapes(gate.shape, up.shape)
        gate, up = np.broadcast_to(gate, shape), np.broadcast_to(up, shape)
    out = library.empty(gate.shape, gate.dtype)
    gate, rows, gate_stride = matrix_of(gate)
    up, _, up_stride = matrix_of(up)
    result = library.gated(
        function,
        address(gate),
        address(up),
        kind,
        rows,
        gate.shape[1],
        gate_stride,
        up_stride,
        address(out),
    )
    check(result, "gated activation")
    return out


def silu_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `silu_and_mul`."""

    def silu_and_mul(gate: Array, up: Array) -> Array:
        return _gated(library, SILU, gate, up)

    return silu_and_mul


def gelu_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `gelu_and_mul`."""

    def gelu_and_mul(gate: Array, up: Array, *, approximate: str = "none") -> Array:
        return _gated(library, GELU[approximate], gate, up)

    return gelu_and_mul
