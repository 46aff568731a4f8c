"""Pools: one number per window of [batch, channels, ...]."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.dim import Dim
from ..ir.dtype import int32
from ..ir.op import Tensor, Tolerance, op
from ..ir.types import TensorType
from .elementwise import add, cast, div, floating, le, logical_and, lt, maximum, mul, narrowed, number, widened
from .movement import arange, full, reshape
from .windows import check_windows, folded, graph_padded, graph_windows, padded, window_counts, windows


def lowest(dtype: Any) -> float | int:
    """The value that no element is below: -inf, or the smallest integer."""
    kind = np.dtype(dtype)
    return -np.inf if kind.kind not in "iu" else int(np.iinfo(kind).min)


@op(tolerance=Tolerance.EXACT)
def max_pool(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[Dim, ...],
    dilations: tuple[int, ...],
) -> Tensor:
    """The largest element of each window of [batch, channels, ...]; NaN if there is one. Pads are never the largest.

    A window starts every `strides` elements and takes `kernel` elements, `dilations` apart; `pads` are all begins, then
    all ends. A window of nothing but pads gives -inf, or the smallest integer.
    """
    return folded(np.maximum, windows(padded(x, pads, lowest(x.dtype)), kernel, strides, dilations))


@max_pool.infer
def _(
    x: TensorType,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[Dim, ...],
    dilations: tuple[int, ...],
) -> TensorType:
    check_windows(number(x), kernel, strides, pads, dilations)
    return TensorType(x.dtype, (*x.shape[:2], *window_counts(x.shape[2:], kernel, strides, pads, dilations)))


@max_pool.decompose
def _(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[Dim, ...],
    dilations: tuple[int, ...],
) -> Tensor:
    bottom = -np.inf if x.dtype.is_float else lowest(x.dtype.numpy)
    return folded(maximum, graph_windows(graph_padded(x, pads, bottom), kernel, strides, dilations))


@op(tolerance=Tolerance.REDUCTION)
def average_pool(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[Dim, ...],
    dilations: tuple[int, ...],
    count_pads: bool = False,
) -> Tensor:
    """The mean of each window of [batch, channels, ...], over its elements without pads, or with them as zeros.

    Windows are as in `max_pool`, accumulated in at least float32. A window of nothing but pads gives NaN.
    """
    total = folded(np.add, windows(padded(x, pads, 0.0), kernel, strides, dilations))
    if count_pads or not any(pads):
        return total / float(np.prod(kernel))
    for i, counts in enumerate(_inside(x.shape[2:], total.shape[2:], kernel, strides, pads, dilations)):
        total = total / np.reshape(counts, (-1, *(1,) * (len(kernel) - 1 - i)))
    return total


def _inside(sizes: Any, counts: Any, kernel: Any, strides: Any, pads: Any, dilations: Any) -> list[Any]:
    """How many elements of a window are no pads, along each axis, as float64."""
    made = []
    for i in range(len(kernel)):
        first = np.arange(counts[i]) * strides[i] - pads[i]
        places = first[:, None] + np.arange(kernel[i]) * dilations[i]
        made.append(np.sum((places >= 0) & (places < sizes[i]), axis=1).astype(np.float64))
    return made


@average_pool.infer
def _(
    x: TensorType,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[Dim, ...],
    dilations: tuple[int, ...],
    count_pads: bool,
) -> TensorType:
    check_windows(floating(x), kernel, strides, pads, dilations)
    return TensorType(x.dtype, (*x.shape[:2], *window_counts(x.shape[2:], kernel, strides, pads, dilations)))


@average_pool.decompose
def _(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[Dim, ...],
    dilations: tuple[int, ...],
    count_pads: bool,
) -> Tensor:
    wide = widened(x)
    total = folded(add, graph_windows(graph_padded(wide, pads, 0.0), kernel, strides, dilations))
    if count_pads or not any(pads):
        return narrowed(div(total, float(np.prod(kernel))), x)
    make = x.builder.call
    for i in range(len(kernel)):
        size, count = x.shape[2 + i], total.shape[2 + i]
        first = add(mul(make(arange, (), {"size": count, "dtype": int32}), strides[i]), _scalar(x, 0 - pads[i]))
        inside = None
        for k in range(kernel[i]):
            place = add(first, k * dilations[i])
            there = cast(logical_and(le(0, place), lt(place, _scalar(x, size))), dtype=wide.dtype)
            inside = there if inside is None else add(inside, there)
        total = div(total, reshape(inside, shape=(count, *(1,) * (len(kernel) - 1 - i))))
    return narrowed(total, x)


def _scalar(like: Tensor, value: Dim) -> Tensor:
    """A size as an int32 scalar."""
    return like.builder.call(full, (), {"shape": (), "value": value, "dtype": int32})
