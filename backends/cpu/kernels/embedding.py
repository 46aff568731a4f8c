"""Native readers of weights: rows gathered by index, and all rows as plain numbers, each value rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xinheng.core.errors import DeviceError
from xinheng.core.ir.dtype import DType

from .library import TYPES, Library, check


def _output_type(dtype: DType) -> torch.dtype:
    kind: Any = getattr(torch, dtype.name, None)
    if kind not in TYPES:
        raise DeviceError(f"native kernels write float32, bfloat16 and float16, not {dtype}; use the torch kernel")
    return kind  # type: ignore[no-any-return]


def embedding_kernel(library: Library) -> Callable[..., torch.Tensor]:
    """The kernel of `embedding`."""

    def embedding(indices: torch.Tensor, weight: Any, *, dtype: DType) -> torch.Tensor:
        kind = _output_type(dtype)
        rows, columns = weight.shape
        if indices.dtype is not torch.int32 and indices.dtype is not torch.int64:
            indices = indices.to(torch.int64)
        flat = indices.contiguous()
        out = torch.empty((*indices.shape, columns), dtype=kind)
        wide, count = int(flat.dtype is torch.int64), flat.numel()
        parts = library.pack(weight)
        bad = library.embedding(
            flat.data_ptr(), wide, count, parts, len(weight.parts), columns, TYPES[kind], out.data_ptr()
        )
        if bad >= 0:
            raise DeviceError(f"embedding: index {int(flat.reshape(-1)[bad])} is outside the {rows} rows of the weight")
        check(bad + 1, "embedding")
        return out

    return embedding


def dequantize_kernel(library: Library) -> Callable[..., torch.Tensor]:
    """The kernel of `dequantize`."""

    def dequantize(weight: Any, *, dtype: DType) -> torch.Tensor:
        kind = _output_type(dtype)
        rows, columns = weight.shape
        out = torch.empty((rows, columns), dtype=kind)
        parts = library.pack(weight)
        check(library.dequantize(parts, len(weight.parts), columns, TYPES[kind], out.data_ptr()), "dequantize")
        return out

    return dequantize
