"""Native linear: activations times packed or dense weight rows, accumulated in float32 in one order per element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xinheng.core.errors import DeviceError

from ..arrays import Array, address, contiguous
from .library import Library, check, matrix_of, type_code


def linear_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `linear`."""
    run, pack = library.linear, library.pack

    def linear(x: Array, weight: Any, bias: Array | None = None) -> Array:
        rows, columns = weight.shape
        if x.shape[-1] != columns:
            raise DeviceError(f"linear: x has {x.shape[-1]} columns, the weight has {columns}")
        kind = type_code(x)
        flat, tokens, stride = matrix_of(x)
        out = library.empty((*x.shape[:-1], rows), x.dtype)
        if bias is None:
            added, added_kind = None, 0
        else:
            bias = contiguous(bias)
            added, added_kind = address(bias), type_code(bias)
        parts = pack(weight)
        count = len(weight.parts)
        result = run(address(flat), kind, tokens, columns, stride, parts, count, added, added_kind, address(out))
        check(result, "linear")
        return out

    return linear
