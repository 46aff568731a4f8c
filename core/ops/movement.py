"""Ops that move elements without changing them, and those that make tensors from nothing."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import cast

import numpy as np

from ..ir.dim import Dim, broadcast, maximum, minimum, product, require_equal
from ..ir.dtype import DType
from ..ir.op import Tensor, Tolerance, op, require
from ..ir.types import TensorType


def axis_of(x: TensorType, axis: int) -> int:
    """A checked axis counted from the front."""
    require(-x.rank <= axis < x.rank, f"axis {axis} is out of range for {x}")
    return axis % x.rank


def integer(x: TensorType, what: str, rank: int | None = None) -> None:
    """Demand an integer tensor, of so many axes if a rank is given."""
    require(x.dtype.is_integer, f"{what} must be integers, not {x.dtype}")
    require(rank in (None, x.rank), f"{what} must have {rank} axes, not {x}")


def known(shape: tuple[Dim, ...]) -> tuple[int, ...]:
    """Sizes as references get them: numbers."""
    return cast("tuple[int, ...]", shape)


@op(tolerance=Tolerance.EXACT)
def full(*, shape: tuple[Dim, ...], value: float | int | bool | Dim, dtype: DType) -> Tensor:
    """A tensor of one value, which may be a size."""
    return np.full(known(shape), value, np.float64 if dtype.is_float else dtype.numpy)


@full.infer
def _(*, shape: tuple[Dim, ...], value: float | Dim, dtype: DType) -> TensorType:
    return TensorType(dtype, shape)


@op(tolerance=Tolerance.EXACT)
def arange(*, size: Dim, dtype: DType) -> Tensor:
    """0, 1, …, size - 1."""
    return np.arange(size, dtype=np.float64 if dtype.is_float else dtype.numpy)


@arange.infer
def _(*, size: Dim, dtype: DType) -> TensorType:
    return TensorType(dtype, (size,))


@op(tolerance=Tolerance.EXACT)
def reshape(x: Tensor, *, shape: tuple[Dim, ...]) -> Tensor:
    """The same elements in row-major order under another shape."""
    return np.reshape(x, known(shape))


@reshape.infer
def _(x: TensorType, *, shape: tuple[Dim, ...]) -> TensorType:
    require_equal(product(x.shape), product(shape), f"{x} does not have as many elements as {list(shape)}")
    return TensorType(x.dtype, shape)


@op(tolerance=Tolerance.EXACT)
def permute(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    """Axis i of the result is axis axes[i] of x."""
    return np.transpose(x, axes)


@permute.infer
def _(x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
    require(sorted(axes) == list(range(x.rank)), f"axes {list(axes)} are not a permutation of the axes of {x}")
    return TensorType(x.dtype, tuple(x.shape[a] for a in axes))


@op(tolerance=Tolerance.EXACT)
def expand(x: Tensor, *, shape: tuple[Dim, ...]) -> Tensor:
    """Repeat axes of size 1 so that the shape becomes `shape` (numpy's broadcast_to)."""
    return np.broadcast_to(x, known(shape))


@expand.infer
def _(x: TensorType, *, shape: tuple[Dim, ...]) -> TensorType:
    joined = broadcast(x.shape, shape)
    require(len(joined) == len(shape), f"{x} has more axes than {list(shape)}")
    for a, b in zip(joined, shape, strict=True):
        require_equal(a, b, f"{x} does not expand to {list(shape)}")
    return TensorType(x.dtype, shape)


@op(tolerance=Tolerance.EXACT)
def concat(*xs: Tensor, axis: int) -> Tensor:
    """Tensors one after the other along an axis."""
    return np.concatenate(xs, axis=axis)


@concat.infer
def _(*xs: TensorType, axis: int) -> TensorType:
    require(len(xs) > 0, "needs at least one tensor")
    axis = axis_of(xs[0], axis)
    total: Dim = 0
    for x in xs:
        require(x.dtype == xs[0].dtype and x.rank == xs[0].rank, f"{x} and {xs[0]} do not join")
        for i in range(x.rank):
            if i != axis:
                require_equal(x.shape[i], xs[0].shape[i], f"{x} and {xs[0]} do not join along axis {axis}")
        total = total + x.shape[axis]
    return TensorType(xs[0].dtype, (*xs[0].shape[:axis], total, *xs[0].shape[axis + 1 :]))


@op(tolerance=Tolerance.EXACT)
def split(x: Tensor, *, sizes: tuple[Dim, ...], axis: int) -> Tensor:
    """Consecutive pieces of the given sizes along an axis, which they fill exactly."""
    at = (np.s_[:],) * (axis % len(x.shape))
    return tuple(x[(*at, np.s_[a:b])] for a, b in pairwise(accumulate(known(sizes), initial=0)))


@split.infer
def _(x: TensorType, *, sizes: tuple[Dim, ...], axis: int) -> tuple[TensorType, ...]:
    axis = axis_of(x, axis)
    require(len(sizes) > 0, "needs at least one piece")
    total: Dim = 0
    for size in sizes:
        total = total + size
    require_equal(total, x.shape[axis], f"pieces of sizes {list(sizes)} do not fill axis {axis} of {x}")
    return tuple(TensorType(x.dtype, (*x.shape[:axis], s, *x.shape[axis + 1 :])) for s in sizes)


@op(tolerance=Tolerance.EXACT)
def slice(x: Tensor, *, axis: int, start: Dim, stop: Dim, step: int = 1) -> Tensor:
    """Elements start, start + step, … below stop along an axis; both ends are clipped to the axis, none is negative."""
    at = (np.s_[:],) * (axis % len(x.shape))
    return x[(*at, np.s_[start:stop:step])]


@slice.infer
def _(x: TensorType, *, axis: int, start: Dim, stop: Dim, step: int) -> TensorType:
    axis = axis_of(x, axis)
    require(step > 0, f"step must be positive, not {step}")
    for name, end in (("start", start), ("stop", stop)):
        require(not isinstance(end, int) or end >= 0, f"{name} must not be negative, is {end}")
    size = x.shape[axis]
    kept = maximum(minimum(stop, size) - minimum(start, size), 0)
    return TensorType(x.dtype, (*x.shape[:axis], (kept + (step - 1)) // step, *x.shape[axis + 1 :]))


@op(tolerance=Tolerance.EXACT)
def index_select(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Slices of x along an axis in the order of `indices` (integers, within range); the axis becomes their shape."""
    return np.take(x, np.asarray(indices, np.int64), axis=axis)


@index_select.infer
def _(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    integer(indices, "indices")
    axis = axis_of(x, axis)
    return TensorType(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@op(tolerance=Tolerance.EXACT)
def gather(x: Tensor, indices: Tensor, *, axis: int = -1) -> Tensor:
    """For each position the element of x whose index along `axis` is given (numpy's take_along_axis)."""
    return np.take_along_axis(x, np.asarray(indices, np.int64), axis=axis)


@gather.infer
def _(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    integer(indices, "indices")
    axis = axis_of(x, axis)
    require(x.rank == indices.rank, f"indices {indices} must have as many axes as {x}")
    for i in range(x.rank):
        if i != axis:
            require_equal(x.shape[i], indices.shape[i], f"indices {indices} do not fit {x} outside axis {axis}")
    return TensorType(x.dtype, indices.shape)
