"""Matrix products whose right side is laid out as dense rows first, and then read by the native `linear`.

So every product on this device is accumulated in one order per element, whatever the batch; the libraries below numpy
and torch choose theirs by the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from xinheng.core.ir.dtype import from_numpy
from xinheng.core.ir.graph import Node

from ..arrays import Array, contiguous
from ..handles import HostWeight, HostWeightPart
from .library import Library
from .linear import linear_kernel

CHUNK_VALUES = 1 << 22
"""Values of a weight that are expanded at a time."""


def dense(rows: Array) -> HostWeight:
    """A weight of given values [rows, columns]."""
    kept = contiguous(rows)
    part = HostWeightPart(from_numpy(rows.dtype).name, len(rows), kept)
    return HostWeight((rows.shape[0], rows.shape[1]), (part,))


def swapped(x: Array) -> Array:
    """A view with rows as columns."""
    return np.swapaxes(x, -1, -2)


def columns_as_rows(b: Array) -> HostWeight:
    """A matrix as the right side of a product."""
    return dense(swapped(b))


class NativeMatmul:
    """The kernel of `matmul`; a right side that stays the same is laid out once."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._run = linear_kernel(library)

    def plan(self, node: Node, bounds: Mapping[str, int]) -> Callable[[Array, Array], Array]:
        """The kernel of one node."""
        right = node.operands[1]
        if right is None or right.kind not in ("parameter", "constant") or len(right.shape) != 2:
            return self.multiply
        kept: list[tuple[Array, HostWeight]] = []

        def once(b: Array) -> HostWeight:
            if not kept or kept[0][0] is not b:
                kept[:] = [(b, columns_as_rows(b))]
            return kept[0][1]

        return partial(self.multiply, laid_out=once)

    def multiply(self, a: Array, b: Array, laid_out: Callable[[Array], HostWeight] = columns_as_rows) -> Array:
        """a times b, whose columns `laid_out` makes the rows of a weight if it is a matrix."""
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        if not a.size or not b.size:
            made = self._library.empty((*lead, a.shape[-2], b.shape[-1]), a.dtype)
            made.fill(0)
            return made
        if b.ndim == 2:
            return self._run(a, laid_out(b))
        sides = (np.broadcast_to(x, (*lead, *x.shape[-2:])).reshape(-1, *x.shape[-2:]) for x in (a, swapped(b)))
        pairs = zip(*sides, strict=True)
        made = stacked(self._library, [self._run(x, dense(y)) for x, y in pairs], 0)
        return made.reshape(*lead, *made.shape[-2:])


def stacked(library: Library, pieces: list[Array], axis: int) -> Array:
    """Results of one shape behind each other along a new axis."""
    shape = list(pieces[0].shape)
    shape.insert(axis, len(pieces))
    return np.stack(pieces, axis, out=library.empty(shape, pieces[0].dtype))


def expanded_linear_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `linear` for weights that have no native reader."""
    run = linear_kernel(library)

    def linear(x: Array, weight: Any, bias: Array | None = None) -> Array:
        rows, columns = weight.shape
        out = library.empty((*x.shape[:-1], rows), x.dtype)
        for first, values in weight.chunks(np.float32, max(1, CHUNK_VALUES // columns)):
            last = first + len(values)
            out[..., first:last] = run(x, dense(values), None if bias is None else bias[first:last])
        return out

    return linear


def expanded_grouped_linear_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `grouped_linear` for weights that have no native reader."""
    linear = expanded_linear_kernel(library)

    def grouped_linear(x: Array, weight: Any, counts: Array) -> Array:
        out = library.empty((x.shape[0], weight.shape[1]), x.dtype)
        start = 0
        for group, count in zip(weight.groups, counts.tolist(), strict=True):
            if count:
                out[start : start + count] = linear(x[start : start + count], group)
                start += count
        return out

    return grouped_linear


def expanded_batched_linear_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `batched_linear` for weights that have no native reader, and for transposed ones."""
    run = linear_kernel(library)

    def batched_linear(x: Array, weight: Any, *, transposed: bool = False) -> Array:
        heads = [group.values(np.float32) for group in weight.groups]
        made = [run(x[:, i], dense(swapped(values) if transposed else values)) for i, values in enumerate(heads)]
        return stacked(library, made, 1)

    return batched_linear
