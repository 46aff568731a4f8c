"""Native rms_norm: float32 inside, rounded once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..arrays import Array, address, contiguous
from .library import Library, check, rows_of, type_code


def rms_norm_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `rms_norm`."""
    run = library.rms_norm

    def rms_norm(x: Array, weight: Array, *, eps: float) -> Array:
        kind, scale = type_code(x), contiguous(weight)
        flat, rows = rows_of(x)
        out = library.empty(x.shape, x.dtype)
        result = run(address(flat), kind, *rows, x.shape[-1], address(scale), type_code(scale), eps, address(out))
        check(result, "rms_norm")
        return out

    return rms_norm


def add_rms_norm_kernel(library: Library) -> Callable[..., tuple[Array, Array]]:
    """The kernel of `add_rms_norm`: the sum is stored, then normed."""
    norm = rms_norm_kernel(library)

    def add_rms_norm(x: Array, residual: Array, weight: Array, *, eps: float) -> tuple[Array, Array]:
        total = np.add(x, residual, out=library.empty(x.shape, x.dtype))
        return norm(total, weight, eps=eps), total

    return add_rms_norm
