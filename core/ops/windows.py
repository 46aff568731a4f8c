"""The geometry that convolutions and pools share: windows that slide over the last axes of [batch, channels, ...]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from ..ir.dim import Dim
from ..ir.op import Tensor, require
from ..ir.types import TensorType
from .movement import concat, full, slice


def check_windows(
    x: TensorType, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[Dim], dilations: Sequence[int]
) -> None:
    """Demand one positive number per spatial axis, and one pad at each end."""
    axes = x.rank - 2
    require(axes >= 1, f"needs [batch, channels, and at least one spatial axis], not {x}")
    for name, given in (("kernel", kernel), ("strides", strides), ("dilations", dilations)):
        require(
            len(given) == axes and all(g > 0 for g in given), f"{name} must be {axes} positive numbers: {list(given)}"
        )
    fine = len(pads) == 2 * axes and all(not isinstance(p, int) or p >= 0 for p in pads)
    require(fine, f"pads must be {2 * axes} sizes, all begins before all ends, not {list(pads)}")


def window_counts(
    sizes: Sequence[Dim], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[Dim], dilations: Sequence[int]
) -> tuple[Dim, ...]:
    """How many windows there are along each axis: floor((size + pads - reach) / stride) + 1."""
    n = len(kernel)
    return tuple(
        (sizes[i] + pads[i] + pads[n + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i in range(n)
    )


def _offsets(
    counts: Sequence[Any], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Iterator[list[tuple[Any, Any, int]]]:
    """(start, stop, step) along each axis, for each place in a window in row-major order."""
    for place in product(*map(range, kernel)):
        yield [
            (k * d, k * d + (n - 1) * s + 1, s) for k, d, n, s in zip(place, dilations, counts, strides, strict=True)
        ]


def padded(x: Any, pads: Sequence[Any], value: float) -> Any:
    """An array with `value` before and after its spatial axes."""
    n = len(pads) // 2
    for i in range(n):
        shapes = [(*x.shape[: 2 + i], size, *x.shape[3 + i :]) for size in (pads[i], pads[n + i])]
        parts = [np.full(shape, value, x.dtype) for shape in shapes]
        joined = [part for part in (parts[0], x, parts[1]) if part.shape[2 + i]] or [x]
        x = np.concatenate(joined, axis=2 + i) if len(joined) > 1 else joined[0]
    return x


def windows(x: Any, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """Padded [batch, channels, ...] as a list of [batch, channels, windows...], one array per place in a window."""
    counts = window_counts(x.shape[2:], kernel, strides, (0,) * (2 * len(kernel)), dilations)
    return [x[(..., *(np.s_[a:b:c] for a, b, c in at))] for at in _offsets(counts, kernel, strides, dilations)]


def graph_padded(x: Tensor, pads: Sequence[Dim], value: float) -> Tensor:
    """The graph form of `padded`."""
    n = len(pads) // 2
    for i in range(n):
        parts = [
            x.builder.call(
                full, (), {"shape": (*x.shape[: 2 + i], size, *x.shape[3 + i :]), "value": value, "dtype": x.dtype}
            )
            for size in (pads[i], pads[n + i])
        ]
        joined = [p for p, size in ((parts[0], pads[i]), (x, None), (parts[1], pads[n + i])) if size != 0]
        x = concat(*joined, axis=2 + i) if len(joined) > 1 else x
    return x


def graph_windows(x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[Tensor]:
    """The graph form of `windows`."""
    counts = window_counts(x.shape[2:], kernel, strides, (0,) * (2 * len(kernel)), dilations)
    made = []
    for at in _offsets(counts, kernel, strides, dilations):
        piece = x
        for axis, (start, stop, step) in enumerate(at, 2):
            piece = slice(piece, axis=axis, start=start, stop=stop, step=step)
        made.append(piece)
    return made


def folded(function: Callable[[Any, Any], Any], parts: Sequence[Any]) -> Any:
    """All parts combined from left to right."""
    total = parts[0]
    for part in parts[1:]:
        total = function(total, part)
    return total
