"""Native argmax over rows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from xinheng.core.ir.dtype import float32
from xinheng.core.ir.graph import Node

from .library import Library, matrix_of


def argmax_condition(node: Node) -> bool | str:
    """Whether a node looks for the largest of float32 rows, or why the native kernel does not apply."""
    x = node.operands[0]
    assert x is not None
    if x.dtype is not float32:
        return f"reads float32, not {x.dtype}"
    return True if node.attributes["axis"] in (-1, len(x.shape) - 1) else "looks along the last axis only"


def argmax_kernel(library: Library) -> Callable[..., torch.Tensor]:
    """The kernel of `argmax`."""

    def argmax(x: torch.Tensor, *, axis: int = -1) -> torch.Tensor:
        out = torch.empty(x.shape[:-1], dtype=torch.int32)
        flat, rows, stride = matrix_of(x)
        library.argmax(flat.data_ptr(), rows, x.shape[-1], stride, out.data_ptr())
        return out

    return argmax
