"""Native argmax over rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xinheng.core.ir.dtype import float32
from xinheng.core.ir.graph import Node

from ..arrays import Array, address
from .library import Library, matrix_of


def argmax_condition(node: Node) -> bool | str:
    """Whether a node looks for the largest of float32 rows, or why the native kernel does not apply."""
    x = node.operands[0]
    assert x is not None
    if x.dtype is not float32:
        return f"reads float32, not {x.dtype}"
    return True if node.attributes["axis"] in (-1, len(x.shape) - 1) else "looks along the last axis only"


def argmax_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `argmax`."""

    def argmax(x: Array, *, axis: int = -1) -> Array:
        out = library.empty(x.shape[:-1], np.int32)
        flat, rows, stride = matrix_of(x)
        library.argmax(address(flat), rows, x.shape[-1], stride, address(out))
        return out

    return argmax
