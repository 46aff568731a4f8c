"""How tensor operands lie in memory: whole, or as views of larger tensors, made by ops in front of the one under test.

Kernels that assume contiguous or aligned operands are right on whole tensors and wrong on these.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.ir import TensorType, Value


class Layout(StrEnum):
    """What stands between the inputs of a graph and the op under test."""

    WHOLE = "whole"
    SLICED = "sliced"
    """Cut out of rows that are three longer, one element after their begin: rows apart, and hardly aligned."""
    TRANSPOSED = "transposed"
    """With the axes in reverse order; every second element of a vector."""


def held(x: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """The tensor of which `view` makes `x`: with NaN, or one, around it."""
    if layout is Layout.WHOLE or not x.ndim:
        return x
    if layout is Layout.TRANSPOSED and x.ndim > 1:
        return np.ascontiguousarray(x.T)
    around = np.full(_held_shape(x.shape, layout), np.nan if x.dtype.kind == "f" else 1, x.dtype)
    around[..., _cut(x.shape[-1], layout)] = x
    return around


def held_type(kind: TensorType, layout: Layout) -> TensorType:
    """The type of `held`."""
    return TensorType(kind.dtype, _held_shape(kind.shape, layout))


def view(x: Value, kind: TensorType, layout: Layout) -> Value:
    """The operand of type `kind` in a tensor of type `held_type`."""
    if layout is Layout.WHOLE or not kind.shape:
        return x
    if layout is Layout.TRANSPOSED and kind.rank > 1:
        turned: Value = ops.permute(x, axes=tuple(reversed(range(kind.rank))))
        return turned
    cut = _cut(kind.shape[-1], layout)
    inner: Value = ops.slice(x, axis=-1, start=cut.start, stop=cut.stop, step=cut.step)
    return inner


def _cut(size: Any, layout: Layout) -> slice:
    return slice(1, size + 1, 1) if layout is Layout.SLICED else slice(1, 2 * size + 1, 2)


def _held_shape(shape: tuple[Any, ...], layout: Layout) -> tuple[Any, ...]:
    if layout is Layout.WHOLE or not shape:
        return shape
    if layout is Layout.SLICED:
        return (*shape[:-1], shape[-1] + 3)
    return (2 * shape[0] + 1,) if len(shape) == 1 else tuple(reversed(shape))
