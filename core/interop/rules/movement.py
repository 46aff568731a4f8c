"""Import rules of ops that move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import ops
from ...ir.dim import Dim, Expr, interval, maximum, minimum, product
from ...ir.dtype import bool_, int64
from ...ir.graph import Value
from ..call import Call, rule


def transposed(x: Value, order: Sequence[int]) -> Value:
    """x with its axes in another order, which may be the same one."""
    if list(order) == list(range(len(order))):
        return x
    made: Value = ops.permute(x, axes=tuple(order))
    return made


def along(axis: int, index: Value, rank: int) -> Value:
    """A vector shaped so that it broadcasts along one axis of so many."""
    made: Value = ops.reshape(index, shape=(*(1,) * axis, index.shape[0], *(1,) * (rank - 1 - axis)))
    return made


def backwards(c: Call, size: Dim) -> Value:
    """size - 1 down to 0."""
    if isinstance(size, int):
        return c.constant(np.arange(size, dtype=np.int64)[::-1].copy())
    made: Value = ops.sub(c.scalar(size - 1, int64), c.arange(size))
    return made


def flipped(c: Call, x: Value, axis: int) -> Value:
    """x in the opposite order along an axis."""
    made: Value = ops.index_select(x, backwards(c, x.shape[axis]), axis=axis)
    return made


def target_shape(c: Call, shape: tuple[Dim, ...], wanted: Sequence[Dim], allow_zero: bool = False) -> tuple[Dim, ...]:
    """The shape that Reshape means: 0 keeps a size, one -1 is what remains."""
    made: list[Dim] = []
    for i, dim in enumerate(wanted):
        if dim == 0 and not allow_zero and i >= len(shape):
            raise c.refuse(f"the shape {list(wanted)} keeps size {i} of an input with {len(shape)} axes")
        made.append(shape[i] if dim == 0 and not allow_zero else dim)
    rest = [i for i, dim in enumerate(made) if dim == -1]
    if len(rest) > 1:
        raise c.refuse(f"the shape {list(wanted)} leaves more than one size open")
    if rest:
        others, mine = [d for i, d in enumerate(made) if i != rest[0]], list(shape)
        for dim in list(others):
            if dim in mine:
                others.remove(dim)
                mine.remove(dim)
        filled = product(others)
        made[rest[0]] = 0 if filled == 0 else product(mine) // filled
    return tuple(made)


@rule("Reshape")
def _reshape(c: Call) -> Any:
    x = c.x(0)
    wanted = c.attr("shape") if c.attr("shape") is not None else c.dims(1, "shape")
    return ops.reshape(x, shape=target_shape(c, x.shape, wanted, bool(c.attr("allowzero", 0))))


@rule("Flatten")
def _flatten(c: Call) -> Any:
    x = c.x(0)
    axis = int(c.attr("axis", 1))
    axis = axis + x.tensor.rank if axis < 0 else axis
    return ops.reshape(x, shape=(product(x.shape[:axis]), product(x.shape[axis:])))


@rule("Squeeze")
def _squeeze(c: Call) -> Any:
    x = c.x(0)
    axes = c.axes(1, x.tensor.rank)
    if axes is None:
        axes = [i for i, d in enumerate(x.shape) if d == 1]
    return ops.reshape(x, shape=tuple(d for i, d in enumerate(x.shape) if i not in axes))


@rule("Unsqueeze")
def _unsqueeze(c: Call) -> Any:
    x = c.x(0)
    given = c.attr("axes") if c.attr("axes") is not None else c.numbers(1, "axes").reshape(-1).tolist()
    axes = sorted(a % (x.tensor.rank + len(given)) for a in given)
    shape = list(x.shape)
    for axis in axes:
        shape.insert(axis, 1)
    return ops.reshape(x, shape=tuple(shape))


@rule("Transpose")
def _transpose(c: Call) -> Any:
    x = c.x(0)
    return transposed(x, c.attr("perm") or list(range(x.tensor.rank))[::-1])


@rule("Expand")
def _expand(c: Call) -> Any:
    """Sizes of 1 on either side give way; whether others are equal may have to be checked when the graph runs."""
    x, wanted = c.x(0), c.dims(1, "shape")
    rank = max(x.tensor.rank, len(wanted))
    ones: tuple[Dim, ...] = (1,) * rank
    mine, other = (*ones[x.tensor.rank :], *x.shape), (*ones[len(wanted) :], *wanted)
    return ops.expand(x, shape=tuple(a if b == 1 else b for a, b in zip(mine, other, strict=True)))


@rule("Concat")
def _concat(c: Call) -> Any:
    xs = c.all()
    return ops.concat(*xs, axis=c.axis(1, xs[0].tensor.rank)) if len(xs) > 1 else c.inputs[0]


def pieces(c: Call, size: Dim, count: int) -> list[Dim]:
    """The sizes of the parts that Split makes of an axis."""
    if c.attr("split") is not None:
        return list(c.attr("split"))
    if c.has(1):
        return c.dims(1, "split")
    parts = int(c.attr("num_outputs", count))
    each = -((0 - size) // parts)
    if isinstance(each, Expr) or isinstance(size, Expr):
        return [each] * (parts - 1) + [size - each * (parts - 1)]
    return [max(min(each, size - each * i), 0) for i in range(parts)]


@rule("Split")
def _split(c: Call) -> Any:
    x = c.x(0)
    axis = c.axis(0, x.tensor.rank)
    return ops.split(x, sizes=tuple(pieces(c, x.shape[axis], len(c.outputs))), axis=axis)


@rule("Slice")
def _slice(c: Call) -> Any:
    x = c.x(0)
    if c.attr("starts") is not None:
        starts, ends, axes, steps = c.attr("starts"), c.attr("ends"), c.attr("axes"), None
    else:
        starts, ends = c.dims(1, "starts"), c.dims(2, "ends")
        axes = c.numbers(3, "axes").reshape(-1).tolist() if c.has(3) else None
        steps = c.numbers(4, "steps").reshape(-1).tolist() if c.has(4) else None
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = (axes[i] if axes is not None else i) % x.tensor.rank
        x = sliced(c, x, axis, start, end, 1 if steps is None else int(steps[i]))
    return x


def sliced(c: Call, x: Value, axis: int, start: Dim, end: Dim, step: int) -> Value:
    """Python's slice of an axis; ends may be negative or beyond, and the step may be negative."""
    size = x.shape[axis]
    if step < 0:
        top, floor = bounded(c, start, size, size - 1), end
        if isinstance(end, int) and end < 0:
            floor = -1 if end < -(2**30) else maximum(size + end, -1)
        count = maximum((top - floor + (-step - 1)) // -step, 0)
        places = ops.sub(c.scalar(top, int64), ops.mul(c.arange(count), -step))
        made: Value = ops.index_select(x, places, axis=axis)
        return made
    low, high = bounded(c, start, size, size), bounded(c, end, size, size)
    if low == 0 and high == size and step == 1:
        return x
    cut: Value = ops.slice(x, axis=axis, start=low, stop=high, step=step)
    return cut


def bounded(c: Call, place: Dim, size: Dim, most: Dim) -> Dim:
    """A place counted from the front, within the axis."""
    if isinstance(place, int):
        if place >= 2**30:
            return most
        if place < -(2**30):
            return 0
        return minimum(place, most) if place >= 0 else maximum(size + place, 0)
    low, high = interval(place, {})
    if low >= 0:
        return minimum(place, most)
    if high < 0:
        return maximum(size + place, 0)
    if place == size - 1:
        return maximum(minimum(place, most), 0)
    raise c.refuse(f"it cannot be told whether the end {place} counts from the front or from the back")


@rule("Tile")
def _tile(c: Call) -> Any:
    x = c.x(0)
    repeats = c.dims(1, "repeats")
    if c.version < 6:
        axis = int(c.numbers(2, "axis").reshape(-1)[0])
        repeats = [repeats[0] if i == axis else 1 for i in range(x.tensor.rank)]
    if all(r == 1 for r in repeats):
        return c.inputs[0]
    inner = [d for d in x.shape for d in (1, d)]
    outer = [d for r, d in zip(repeats, x.shape, strict=True) for d in (r, d)]
    spread = ops.expand(ops.reshape(x, shape=tuple(inner)), shape=tuple(outer))
    return ops.reshape(spread, shape=tuple(r * d for r, d in zip(repeats, x.shape, strict=True)))


def pads_of(c: Call, rank: int) -> tuple[list[Dim], list[int]]:
    """Begins and ends for every axis, from the pads of some axes."""
    given = c.attr("pads") or c.attr("paddings") or c.dims(1, "pads")
    axes = c.axes(3, rank) or list(range(rank))
    full: list[Dim] = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        full[axis], full[rank + axis] = given[i], given[len(axes) + i]
    return full, axes


@rule("Pad")
def _pad(c: Call) -> Any:
    x = c.x(0)
    rank = x.tensor.rank
    mode = c.choice("mode", "constant", "constant", "reflect", "edge", "wrap")
    pads, _ = pads_of(c, rank)
    value = None
    if mode == "constant":
        if c.has(2):
            value = ops.reshape(c.x(2), shape=())
        else:
            value = c.full((), False if x.dtype is bool_ else c.attr("value", 0.0) if x.dtype.is_float else 0, x.dtype)
    for axis in range(rank):
        x = _padded(c, x, axis, pads[axis], pads[rank + axis], mode, value)
    return x


def _padded(c: Call, x: Value, axis: int, before: Dim, after: Dim, mode: str, value: Value | None) -> Value:
    if before == 0 and after == 0:
        return x
    cut = [d if isinstance(d, int) and d < 0 else 0 for d in (before, after)]
    if any(cut):
        x = sliced(c, x, axis, 0 - cut[0], x.shape[axis] + cut[1], 1)
        before, after = before - cut[0], after - cut[1]
        if before == 0 and after == 0:
            return x
    if value is not None:
        shapes = [(*x.shape[:axis], d, *x.shape[axis + 1 :]) for d in (before, after)]
        ends = [ops.expand(value, shape=shape) for shape in shapes]
        parts = [p for p, d in ((ends[0], before), (x, None), (ends[1], after)) if d != 0]
        made: Value = ops.concat(*parts, axis=axis)
        return made
    size = x.shape[axis]
    if isinstance(size, Expr) or isinstance(before, Expr) or isinstance(after, Expr):
        raise c.refuse(f"mode {mode!r} needs sizes that are known, axis {axis} is {size} long")
    places = np.arange(-before, size + after)
    if mode == "edge":
        places = np.clip(places, 0, size - 1)
    elif mode == "wrap":
        places = places % size
    else:
        period = max(2 * (size - 1), 1)
        places = np.abs((places + size - 1) % period - (size - 1)) if size > 1 else places * 0
    picked: Value = ops.index_select(x, c.constant(places.astype(np.int64)), axis=axis)
    return picked


@rule("DepthToSpace")
def _depth_to_space(c: Call) -> Any:
    x, b = c.x(0), int(c.attr("blocksize"))
    n, depth, h, w = x.shape
    mode = c.choice("mode", "DCR", "DCR", "CRD")
    rest = depth // (b * b)
    if mode == "DCR":
        y = ops.permute(ops.reshape(x, shape=(n, b, b, rest, h, w)), axes=(0, 3, 4, 1, 5, 2))
    else:
        y = ops.permute(ops.reshape(x, shape=(n, rest, b, b, h, w)), axes=(0, 1, 4, 2, 5, 3))
    return ops.reshape(y, shape=(n, rest, h * b, w * b))


@rule("SpaceToDepth")
def _space_to_depth(c: Call) -> Any:
    x, b = c.x(0), int(c.attr("blocksize"))
    n, depth, h, w = x.shape
    mode = c.choice("mode", "DCR", "DCR", "CRD")
    y = ops.reshape(x, shape=(n, depth, h // b, b, w // b, b))
    axes = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return ops.reshape(ops.permute(y, axes=axes), shape=(n, depth * b * b, h // b, w // b))


@rule("ReverseSequence")
def _reverse_sequence(c: Call) -> Any:
    """The first elements of each row in the opposite order, the rest as they are."""
    x, lengths = c.x(0), ops.cast(c.x(1), dtype=int64)
    time, batch = int(c.attr("time_axis", 0)), int(c.attr("batch_axis", 1))
    rank = x.tensor.rank
    steps = along(time, c.arange(x.shape[time]), rank)
    length = along(batch, lengths, rank)
    index = ops.where(ops.lt(steps, length), ops.sub(ops.sub(length, 1), steps), steps)
    return ops.gather(x, ops.expand(index, shape=x.shape), axis=time)


@rule("CenterCropPad")
def _center_crop_pad(c: Call) -> Any:
    x = c.x(0)
    rank = x.tensor.rank
    axes = c.axes(None, rank) or list(range(rank))
    for axis, wanted in zip(axes, c.dims(1, "shape"), strict=True):
        size = x.shape[axis]
        if isinstance(size, Expr) or isinstance(wanted, Expr):
            raise c.refuse(f"axis {axis} is {size} long and shall become {wanted}; both must be known")
        gap = wanted - size
        if gap < 0:
            x = sliced(c, x, axis, -gap // 2, -gap // 2 + wanted, 1)
        elif gap > 0:
            zero = c.full((), False if x.dtype is bool_ else 0, x.dtype)
            x = _padded(c, x, axis, gap // 2, gap - gap // 2, "constant", zero)
    return x
