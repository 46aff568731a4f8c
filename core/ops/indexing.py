"""Ops that write to computed places, and those whose result is as large as the data say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir.dim import require_equal, sym
from ..ir.dtype import int64
from ..ir.op import Tensor, Tolerance, op, require
from ..ir.types import TensorType
from .movement import axis_of, integer

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


@op(tolerance=Tolerance.REDUCTION)
def scatter(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: str = "none") -> Tensor:
    """x with each of `updates` at the place whose index along `axis` is given: the inverse of `gather`.

    indices (integers, within range) and updates have one shape, with the sizes of x outside `axis` or smaller ones.
    `reduction` says how an update and what is there become one: "none" replaces it (of several updates of one place
    any may stay; here it is the last one), "add", "mul", "max" and "min" combine them one after the other.
    """
    where = list(np.indices(indices.shape))
    where[axis] = np.asarray(indices)
    targets = np.ravel_multi_index(tuple(where), x.shape).reshape(-1)
    order = np.argsort(targets, kind="stable")
    first = np.searchsorted(targets[order], targets[order], side="left")
    turn = np.empty(targets.size, int)
    turn[order] = np.arange(targets.size) - first
    result, flat = np.reshape(x, (-1,)), np.reshape(updates, (-1,))
    for each in range(int(turn.max()) + 1 if targets.size else 0):
        writer = np.full(result.shape[0], -1)
        writer[targets[turn == each]] = np.flatnonzero(turn == each)
        new = COMBINE[reduction](result, np.take(flat, np.maximum(writer, 0)))
        result = np.where(writer >= 0, new, result)
    return np.reshape(result, x.shape)


@scatter.infer
def _(x: TensorType, indices: TensorType, updates: TensorType, *, axis: int, reduction: str) -> TensorType:
    integer(indices, "indices", x.rank)
    axis = axis_of(x, axis)
    require(reduction in COMBINE, f"reduction must be one of {', '.join(COMBINE)}, not {reduction!r}")
    require(updates.dtype == x.dtype, f"updates are {updates.dtype}, x is {x.dtype}")
    require(updates.rank == indices.rank, f"updates {updates} do not have the shape of indices {indices}")
    for i, (a, b, size) in enumerate(zip(updates.shape, indices.shape, x.shape, strict=True)):
        require_equal(a, b, f"updates {updates} do not have the shape of indices {indices}")
        fits = not (isinstance(b, int) and isinstance(size, int)) or i == axis or b <= size
        require(fits, f"indices {indices} are larger than {x} outside axis {axis}")
    return x


@op(tolerance=Tolerance.EXACT)
def nonzero(x: Tensor) -> Tensor:
    """The places of elements that are not zero, in row-major order, as int64 [axes of x, places]."""
    return np.stack(np.nonzero(x != 0)).astype(np.int64)


@nonzero.infer
def _(x: TensorType) -> TensorType:
    require(x.rank > 0, "needs at least one axis")
    return TensorType(int64, (x.rank, sym("nonzero", unbacked=True)))
