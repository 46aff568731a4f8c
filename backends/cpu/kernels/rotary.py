"""Native rotary_embedding, half-split and interleaved, of all or the first elements of each head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xinheng.core.errors import DeviceError

from ..arrays import Array, address, contiguous, stride
from .library import Library, check, rows_of, type_code


def rotary_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `rotary_embedding`."""
    run = library.rotary

    def rotary_embedding(x: Array, cos: Array, sin: Array, *, interleaved: bool = False) -> Array:
        kind, half = type_code(x), cos.shape[1]
        if stride(x, 2) != 1:
            x = contiguous(x)
        fits = cos.shape == sin.shape and cos.shape[0] == x.shape[0] and 2 * half <= x.shape[2]
        if not fits or cos.dtype != np.float32 or sin.dtype != np.float32:
            raise DeviceError(f"rotary_embedding: tables {list(cos.shape)} of {cos.dtype} do not fit x {list(x.shape)}")
        cos, sin = contiguous(cos), contiguous(sin)
        flat, rows = rows_of(x)
        out = library.empty(x.shape, x.dtype)
        result = run(
            address(flat),
            kind,
            *rows,
            x.shape[2],
            address(cos),
            address(sin),
            half,
            interleaved,
            address(out),
        )
        check(result, "rotary_embedding")
        return out

    return rotary_embedding
