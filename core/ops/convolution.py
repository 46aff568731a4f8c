"""Convolutions over any number of spatial axes, as neural networks define them: correlations without a flip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.dim import Dim, product, require_equal
from ..ir.op import Tensor, Tolerance, op, require
from ..ir.types import TensorType
from .contraction import matmul
from .elementwise import add, narrowed, number, widened
from .movement import concat, full, index_select, permute, reshape, slice
from .windows import check_windows, graph_padded, graph_windows, padded, window_counts, windows


@op(tolerance=Tolerance.CONTRACTION)
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    strides: tuple[int, ...],
    pads: tuple[Dim, ...],
    dilations: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    """Convolution of [batch, channels, ...] by [outputs, channels / groups, ...] to [batch, outputs, ...], plus bias.

    y[b, o, p] = bias[o] + sum over c, k of weight[o, c, k] * x[b, c, p * stride + k * dilation - pad], zeros beyond the
    borders. Output o belongs to group o // (outputs / groups), whose channels it sees. `pads` are all begins, then all
    ends; there are floor((size + pads - dilation * (kernel - 1) - 1) / stride) + 1 results along an axis (ONNX Conv;
    Dumoulin and Visin 2016, "A guide to convolution arithmetic for deep learning"). Accumulated in at least float32.
    """
    kernel = weight.shape[2:]
    pieces = windows(padded(x, pads, 0), kernel, strides, dilations)
    counts, places = pieces[0].shape[2:], math.prod(kernel)
    columns = np.reshape(np.stack(pieces, axis=2), (x.shape[0], groups, weight.shape[1] * places, math.prod(counts)))
    rows = np.reshape(weight, (groups, weight.shape[0] // groups, weight.shape[1] * places))
    y = np.reshape(np.matmul(rows, columns), (x.shape[0], weight.shape[0], *counts))
    return y if bias is None else y + np.reshape(bias, (-1, *(1,) * len(kernel)))


def _checked(x: TensorType, weight: TensorType, bias: TensorType | None, channels: Dim, outputs: Dim) -> None:
    require(weight.rank == x.rank, f"weight {weight} must have as many axes as {x}")
    require(number(x).dtype == weight.dtype, f"operands differ in dtype: {x.dtype} and {weight.dtype}")
    require(all(isinstance(d, int) for d in weight.shape), f"the sizes of weight {weight} must be known")
    require_equal(x.shape[1], channels, f"weight {weight} does not fit {x}")
    require(bias is None or bias == TensorType(x.dtype, (outputs,)), f"bias must be {x.dtype}[{outputs}], not {bias}")


@conv.infer
def _(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    *,
    strides: tuple[int, ...],
    pads: tuple[Dim, ...],
    dilations: tuple[int, ...],
    groups: int,
) -> TensorType:
    require(x.rank == weight.rank and weight.rank > 2, f"weight {weight} must have as many axes as {x}")
    _checked(x, weight, bias, weight.shape[1] * groups, weight.shape[0])
    outputs, kernel = weight.shape[0], weight.shape[2:]
    require(isinstance(outputs, int) and outputs % groups == 0, f"{outputs} outputs do not fall into {groups} groups")
    check_windows(x, kernel, strides, pads, dilations)  # type: ignore[arg-type]
    counts = window_counts(x.shape[2:], kernel, strides, pads, dilations)  # type: ignore[arg-type]
    return TensorType(x.dtype, (x.shape[0], outputs, *counts))


@conv.decompose
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    strides: tuple[int, ...],
    pads: tuple[Dim, ...],
    dilations: tuple[int, ...],
    groups: int,
) -> Tensor:
    batch, outputs, inner, kernel = x.shape[0], weight.shape[0], weight.shape[1], weight.shape[2:]
    pieces = graph_windows(graph_padded(widened(x), pads, 0), kernel, strides, dilations)
    counts, places = pieces[0].shape[2:], math.prod(kernel)
    stacked = concat(*(reshape(p, shape=(*p.shape[:2], 1, *counts)) for p in pieces), axis=2)
    columns = reshape(stacked, shape=(batch, groups, inner * places, product(counts)))
    rows = reshape(widened(weight), shape=(1, groups, outputs // groups, inner * places))
    y = reshape(matmul(rows, columns), shape=(batch, outputs, *counts))
    if bias is not None:
        y = add(y, reshape(widened(bias), shape=(1, outputs, *(1,) * len(kernel))))
    return narrowed(y, x)


@op(tolerance=Tolerance.CONTRACTION)
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    """The transpose of `conv` as a linear map: [batch, channels, ...] by [channels, outputs / groups, ...], plus bias.

    Each x[b, c, p] adds weight[c, o, k] * x[b, c, p] at p * stride + k * dilation - pad. An axis becomes
    (size - 1) * stride + dilation * (kernel - 1) + 1 - pads + output_padding long. Accumulated in at least float32
    (ONNX ConvTranspose).
    """
    kernel = weight.shape[2:]
    for i, stride in enumerate(strides, 2):
        x = _spaced(x, i, stride)
    crop = _borders(kernel, pads, dilations, output_padding)
    x = padded(x, [max(c, 0) for c in crop], 0)
    inner = tuple(np.s_[max(-a, 0) : x.shape[i] - max(-b, 0)] for i, (a, b) in enumerate(_ends(crop), 2))
    channels, outputs = weight.shape[:2]
    flipped = np.flip(weight, axis=tuple(range(2, len(weight.shape))))
    swapped = np.swapaxes(np.reshape(flipped, (groups, channels // groups, outputs, *kernel)), 1, 2)
    straight = np.reshape(swapped, (groups * outputs, channels // groups, *kernel))
    still = {"strides": (1,) * len(kernel), "pads": (0,) * (2 * len(kernel))}
    return conv.reference(x[(..., *inner)], straight, bias, **still, dilations=dilations, groups=groups)


def _spaced(x: Any, axis: int, stride: int) -> Any:
    """An array with stride - 1 zeros between its elements along an axis."""
    if stride == 1 or x.shape[axis] == 0:
        return x
    wide = np.expand_dims(x, axis + 1)
    zeros = np.zeros((*x.shape[: axis + 1], stride - 1, *x.shape[axis + 1 :]), x.dtype)
    joined = np.concatenate([wide, zeros], axis=axis + 1)
    long = np.reshape(joined, (*x.shape[:axis], x.shape[axis] * stride, *x.shape[axis + 1 :]))
    return long[(np.s_[:],) * axis + (np.s_[: (x.shape[axis] - 1) * stride + 1],)]


def _borders(
    kernel: Sequence[int], pads: Sequence[int], dilations: Sequence[int], output_padding: Sequence[int]
) -> list[int]:
    """How many zeros to put around the spaced input; less than none means to cut."""
    n = len(kernel)
    reach = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    begins = [reach[i] - pads[i] for i in range(n)]
    return begins + [reach[i] - pads[n + i] + output_padding[i] for i in range(n)]


def _ends(borders: Sequence[int]) -> list[tuple[int, int]]:
    n = len(borders) // 2
    return [(borders[i], borders[n + i]) for i in range(n)]


@conv_transpose.infer
def _(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    *,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
) -> TensorType:
    require(x.rank == weight.rank and weight.rank > 2, f"weight {weight} must have as many axes as {x}")
    outputs, kernel = weight.shape[1] * groups, weight.shape[2:]
    _checked(x, weight, bias, weight.shape[0], outputs)
    channels = weight.shape[0]
    require(
        isinstance(channels, int) and channels % groups == 0, f"{channels} channels do not fall into {groups} groups"
    )
    check_windows(x, kernel, strides, (0,) * (2 * len(kernel)), dilations)  # type: ignore[arg-type]
    require(len(pads) == 2 * len(kernel), f"pads must be {2 * len(kernel)} numbers, not {list(pads)}")
    require(len(output_padding) == len(kernel), f"output_padding must be {len(kernel)} numbers")
    ends = _ends(_borders(kernel, pads, dilations, output_padding))  # type: ignore[arg-type]
    sizes = tuple(
        (x.shape[i + 2] - 1) * strides[i] + 1 + a + b - dilations[i] * (kernel[i] - 1) for i, (a, b) in enumerate(ends)
    )
    return TensorType(x.dtype, (x.shape[0], outputs, *sizes))


@conv_transpose.decompose
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
) -> Tensor:
    wide, kernel, builder = widened(x), weight.shape[2:], x.builder
    for i, stride in enumerate(strides, 2):
        wide = _graph_spaced(wide, i, stride)
    borders = _borders(kernel, pads, dilations, output_padding)
    wide = graph_padded(wide, [max(c, 0) for c in borders], 0)
    for i, (a, b) in enumerate(_ends(borders), 2):
        if min(a, b) < 0:
            wide = slice(wide, axis=i, start=max(-a, 0), stop=wide.shape[i] - max(-b, 0))
    channels, outputs = weight.shape[:2]
    straight = widened(weight)
    for i, size in enumerate(kernel, 2):
        if size > 1:
            straight = index_select(straight, builder.constant(np.arange(size)[::-1].copy()), axis=i)
    grouped = reshape(straight, shape=(groups, channels // groups, outputs, *kernel))
    swapped = permute(grouped, axes=(0, 2, 1, *range(3, 3 + len(kernel))))
    straight = reshape(swapped, shape=(groups * outputs, channels // groups, *kernel))
    y = conv(
        wide,
        straight,
        None if bias is None else widened(bias),
        strides=(1,) * len(kernel),
        pads=(0,) * (2 * len(kernel)),
        dilations=dilations,
        groups=groups,
    )
    return narrowed(y, x)


def _graph_spaced(x: Tensor, axis: int, stride: int) -> Tensor:
    """The graph form of `_spaced`."""
    size = x.shape[axis]
    if stride == 1 or size == 0:
        return x
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    shape = (*before, size, stride - 1, *after)
    zeros = x.builder.call(full, (), {"shape": shape, "value": 0, "dtype": x.dtype})
    joined = concat(reshape(x, shape=(*before, size, 1, *after)), zeros, axis=axis + 1)
    long = reshape(joined, shape=(*before, size * stride, *after))
    return slice(long, axis=axis, start=0, stop=(size - 1) * stride + 1)
