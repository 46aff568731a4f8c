"""Import rules of ops that read from or write to computed places."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...ir.dim import Dim, product
from ...ir.dtype import bool_, int64
from ...ir.graph import Value
from ..call import Call, rule
from .movement import along


def places(c: Call, index: int, size: Dim) -> Value:
    """Indices counted from the front; negative ones count from the back."""
    item = c.item(index)
    if item.known is not None and item.known.dtype != object and isinstance(size, int):
        known = item.known.astype(np.int64)
        return c.constant(np.where(known < 0, known + size, known), int64)
    x = ops.cast(c.x(index), dtype=int64) if item.dtype is not int64 else c.x(index)
    made: Value = ops.where(ops.lt(x, 0), ops.add(x, c.scalar(size, int64)), x)
    return made


@rule("Gather")
def _gather(c: Call) -> Any:
    x = c.x(0)
    axis = c.axis(0, x.tensor.rank)
    return ops.index_select(x, places(c, 1, x.shape[axis]), axis=axis)


@rule("GatherElements")
def _gather_elements(c: Call) -> Any:
    x = c.x(0)
    axis = c.axis(0, x.tensor.rank)
    index = places(c, 1, x.shape[axis])
    for i, size in enumerate(index.shape):
        if i != axis and size != x.shape[i]:
            x = ops.slice(x, axis=i, start=0, stop=size)
    return ops.gather(x, index, axis=axis)


def row_numbers(c: Call, x: Value, indices: Value, lead: int) -> Value:
    """Tuples of indices [..., n] into n axes of x from `lead` on, as numbers of the rows that these axes make."""
    total: Value | None = None
    for i in range(int(indices.shape[-1])):  # type: ignore[arg-type]
        part = ops.slice(indices, axis=indices.tensor.rank - 1, start=i, stop=i + 1)
        size = c.scalar(x.shape[lead + i], int64)
        part = ops.where(ops.lt(part, 0), ops.add(part, size), part)
        total = part if total is None else ops.add(ops.mul(total, size), part)
    assert total is not None
    made: Value = ops.reshape(total, shape=indices.shape[:-1])
    return made


@rule("GatherND")
def _gather_nd(c: Call) -> Any:
    x, indices = c.x(0), ops.cast(c.x(1), dtype=int64)
    lead = int(c.attr("batch_dims", 0))
    width = indices.shape[-1]
    if not isinstance(width, int):
        raise c.refuse("the last axis of input 1 (indices) must have a known size")
    if width == 0:
        raise c.refuse("tuples of no index are not supported")
    rows = row_numbers(c, x, indices, lead)
    inner = x.shape[lead + width :]
    count = product(x.shape[lead : lead + width])
    for i in range(lead):
        stride = product(x.shape[i + 1 : lead])
        offset = ops.mul(c.arange(x.shape[i]), c.scalar(stride * count, int64))
        rows = ops.add(rows, along(i, offset, rows.tensor.rank))
    flat = ops.reshape(x, shape=(product(x.shape[: lead + width]), *inner))
    return ops.index_select(flat, rows, axis=0)


@rule("Scatter", "ScatterElements")
def _scatter_elements(c: Call) -> Any:
    x, updates = c.x(0), c.x(2)
    axis = c.axis(0, x.tensor.rank)
    reduction = c.choice("reduction", "none", "none", "add", "mul", "max", "min")
    return ops.scatter(x, places(c, 1, x.shape[axis]), updates, axis=axis, reduction=reduction)


@rule("ScatterND")
def _scatter_nd(c: Call) -> Any:
    """Rows of the matrix that the indexed axes and the others make of x."""
    x, indices, updates = c.x(0), ops.cast(c.x(1), dtype=int64), c.x(2)
    reduction = c.choice("reduction", "none", "none", "add", "mul", "max", "min")
    width = indices.shape[-1]
    if not isinstance(width, int) or width == 0:
        raise c.refuse("the last axis of input 1 (indices) must have a known size above 0")
    rows = row_numbers(c, x, indices, 0)
    count, inner = product(rows.shape), product(x.shape[width:])
    flat = ops.reshape(x, shape=(product(x.shape[:width]), inner))
    index = ops.expand(ops.reshape(rows, shape=(count, 1)), shape=(count, inner))
    made = ops.scatter(flat, index, ops.reshape(updates, shape=(count, inner)), axis=0, reduction=reduction)
    return ops.reshape(made, shape=x.shape)


@rule("TensorScatter")
def _tensor_scatter(c: Call) -> Any:
    """Rows of updates into each row of a cache, from a place of its own on, perhaps around its end."""
    x, updates = c.x(0), c.x(1)
    axis = c.axis(-2, x.tensor.rank)
    mode = c.choice("mode", "linear", "linear", "circular")
    rank = x.tensor.rank
    index = along(axis, c.arange(updates.shape[axis]), rank)
    if c.has(2):
        start = along(0, ops.reshape(ops.cast(c.x(2), dtype=int64), shape=(x.shape[0],)), rank)
        index = ops.add(index, start)
    if mode == "circular":
        index = ops.fmod(index, c.scalar(x.shape[axis], int64))
    return ops.scatter(x, ops.expand(index, shape=updates.shape), updates, axis=axis)


@rule("NonZero")
def _non_zero(c: Call) -> Any:
    return ops.nonzero(c.x(0))


@rule("Compress")
def _compress(c: Call) -> Any:
    x, condition = c.x(0), c.x(1)
    if c.attr("axis") is None:
        x = ops.reshape(x, shape=(product(x.shape),))
    axis = c.axis(0, x.tensor.rank)
    assert condition.dtype is bool_
    found = ops.nonzero(condition)
    return ops.index_select(x, ops.reshape(found, shape=(found.shape[1],)), axis=axis)


@rule("MaxUnpool")
def _max_unpool(c: Call) -> Any:
    """Each element at the place where its pool found it; places are counted in the shape without `output_shape`."""
    x, index = c.x(0), ops.cast(c.x(1), dtype=int64)
    kernel = c.attr("kernel_shape")
    n = len(kernel)
    strides, pads = c.attr("strides", [1] * n), c.attr("pads", [0] * 2 * n)
    plain = [(x.shape[2 + i] - 1) * strides[i] - pads[i] - pads[n + i] + kernel[i] for i in range(n)]
    shape = (*x.shape[:2], *plain)
    flat = ops.scatter(
        c.full((product(shape),), 0, x.dtype),
        ops.reshape(index, shape=(product(x.shape),)),
        ops.reshape(x, shape=(product(x.shape),)),
        axis=0,
    )
    y = ops.reshape(flat, shape=shape)
    if c.has(2):
        for i, (size, wanted) in enumerate(zip(shape, c.dims(2, "output_shape"), strict=True)):
            if wanted != size:
                zeros = c.full((*y.shape[:i], wanted - size, *y.shape[i + 1 :]), 0, y.dtype)
                y = ops.concat(y, zeros, axis=i)
    return y


@rule("Col2Im")
def _col_to_im(c: Call) -> Any:
    """Columns of windows added up at their places in the image."""
    from itertools import product as places_in

    x = c.x(0)
    image = [int(d) for d in c.numbers(1, "image_shape").reshape(-1)]
    block = [int(d) for d in c.numbers(2, "block_shape").reshape(-1)]
    n = len(image)
    strides, dilations = c.attr("strides", [1] * n), c.attr("dilations", [1] * n)
    pads = c.attr("pads", [0] * 2 * n)
    from ...ops.windows import window_counts

    full = [image[i] + pads[i] + pads[n + i] for i in range(n)]
    counts = [int(w) for w in window_counts(image, block, strides, pads, dilations)]  # type: ignore[arg-type]
    corners = np.indices(counts).reshape(n, -1) * np.array(strides)[:, None]
    corner = np.ravel_multi_index(tuple(corners), full)
    table = []
    for place in places_in(*map(range, block)):
        offset = np.ravel_multi_index(tuple(p * d for p, d in zip(place, dilations, strict=True)), full)
        table.append(corner + int(offset))
    index = c.constant(np.concatenate(table).astype(np.int64))
    batch, places_count = x.shape[0], int(np.prod(block))
    channels = x.shape[1] // places_count
    columns = ops.reshape(x, shape=(batch, channels, index.shape[0]))
    spread = ops.expand(ops.reshape(index, shape=(1, 1, index.shape[0])), shape=columns.shape)
    zeros = c.full((batch, channels, int(np.prod(full))), 0, x.dtype)
    y = ops.reshape(ops.scatter(zeros, spread, columns, axis=2, reduction="add"), shape=(batch, channels, *full))
    for i in range(n):
        y = ops.slice(y, axis=2 + i, start=pads[i], stop=pads[i] + image[i])
    return y
