"""Native linear: activations times packed or dense weight rows, accumulated in float32 in one order per element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xinheng.core.errors import DeviceError

from .library import Library, check, matrix_of, type_code


def linear_kernel(library: Library) -> Callable[..., torch.Tensor]:
    """The kernel of `linear`."""
    run, pack = library.linear, library.pack

    def linear(x: torch.Tensor, weight: Any, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows, columns = weight.shape
        if x.shape[-1] != columns:
            raise DeviceError(f"linear: x has {x.shape[-1]} columns, the weight has {columns}")
        kind = type_code(x)
        flat, tokens, stride = matrix_of(x)
        out = torch.empty((*x.shape[:-1], rows), dtype=x.dtype)
        if bias is None:
            added, added_kind = None, 0
        else:
            bias = bias.contiguous()
            added, added_kind = bias.data_ptr(), type_code(bias)
        parts = pack(weight)
        count = len(weight.parts)
        result = run(flat.data_ptr(), kind, tokens, columns, stride, parts, count, added, added_kind, out.data_ptr())
        check(result, "linear")
        return out

    return linear
