"""Ops over a group of ranks that run one program each, and how their references reach the other ranks.

Every rank of a group calls the same collectives in the same order. `group` is the name of the group and `size` how many
ranks it has; which rank an executable is, and how it reaches the others, is told to its device, not to the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from ..errors import GraphError
from ..ir.dim import Dim, require_equal
from ..ir.op import Tensor, Tolerance, op, require
from ..ir.types import TensorType
from .elementwise import number
from .movement import axis_of
from .reduction import amax, sum


class Peers(Protocol):
    """The other ranks of a group, as references see them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def exchange(self, value: Any, what: str) -> list[Any]:
        """What each rank gave, by rank; `what` says what for, the same on all ranks."""
        ...


_PEERS: ContextVar[Mapping[str, Peers] | None] = ContextVar("peers", default=None)


@contextmanager
def among(peers: Mapping[str, Peers]) -> Iterator[None]:
    """References inside this block reach the ranks of these groups."""
    token = _PEERS.set(peers)
    try:
        yield
    finally:
        _PEERS.reset(token)


def _exchange(x: Any, group: str, size: int, what: str) -> tuple[list[Any], int]:
    """What each rank holds, and which rank this is."""
    if size == 1:
        return [x], 0
    peers = (_PEERS.get() or {}).get(group)
    if peers is None or peers.size != size:
        known = "nobody" if peers is None else f"{peers.size} ranks"
        raise GraphError(f"group {group!r} should have {size} ranks, but {known} can be reached; see `among`")
    return peers.exchange(x, what), peers.rank


def _group(x: TensorType, group: str, size: int) -> None:
    require(size > 0, f"group {group!r} must have at least one rank, not {size}")


def _piece(x: TensorType, axis: int, size: int) -> Dim:
    """The size of one of `size` equal pieces along an axis."""
    piece = x.shape[axis] // size
    require_equal(piece * size, x.shape[axis], f"axis {axis} of {x} does not fall into {size} equal pieces")
    return piece


def _total(parts: list[Any], reduction: str = "sum") -> Any:
    return (amax if reduction == "max" else sum).reference(np.stack(parts), axis=0)


def _along(x: Any, axis: int, rank: int, size: int) -> Any:
    """Piece `rank` of an array."""
    width = x.shape[axis] // size
    return x[(*((np.s_[:],) * (axis % len(x.shape))), np.s_[rank * width : (rank + 1) * width])]


@op(tolerance=Tolerance.COLLECTIVE)
def all_reduce(x: Tensor, *, group: str, size: int, reduction: str = "sum") -> Tensor:
    """The sum ("sum") or the largest ("max") of what the ranks hold, element by element, the same bits on all ranks.

    Sums accumulate in at least float32 and are rounded once; integers wrap. x has the same type on all ranks.
    """
    parts, _ = _exchange(x, group, size, "all_reduce")
    return _total(parts, reduction)


@all_reduce.infer
def _(x: TensorType, *, group: str, size: int, reduction: str) -> TensorType:
    _group(number(x), group, size)
    require(reduction in ("sum", "max"), f"reduction must be 'sum' or 'max', not {reduction!r}")
    return x


@op(tolerance=Tolerance.EXACT)
def all_gather(x: Tensor, *, axis: int, group: str, size: int) -> Tensor:
    """What the ranks hold one after the other along an axis, by rank; x has the same type on all ranks."""
    parts, _ = _exchange(x, group, size, "all_gather")
    return np.concatenate(parts, axis=axis)


@all_gather.infer
def _(x: TensorType, *, axis: int, group: str, size: int) -> TensorType:
    _group(x, group, size)
    axis = axis_of(x, axis)
    return TensorType(x.dtype, (*x.shape[:axis], x.shape[axis] * size, *x.shape[axis + 1 :]))


@op(tolerance=Tolerance.COLLECTIVE)
def reduce_scatter(x: Tensor, *, axis: int, group: str, size: int) -> Tensor:
    """The sum of what the ranks hold, as in `all_reduce`, of which each rank keeps its piece of an axis.

    Rank r keeps the r-th of `size` equal pieces.
    """
    parts, rank = _exchange(x, group, size, "reduce_scatter")
    return _along(_total(parts), axis, rank, size)


@reduce_scatter.infer
def _(x: TensorType, *, axis: int, group: str, size: int) -> TensorType:
    _group(number(x), group, size)
    axis = axis_of(x, axis)
    return TensorType(x.dtype, (*x.shape[:axis], _piece(x, axis, size), *x.shape[axis + 1 :]))


@op(tolerance=Tolerance.EXACT)
def all_to_all(x: Tensor, *, group: str, size: int) -> Tensor:
    """The first axis falls into `size` equal pieces; piece i goes to rank i, and what comes is put together by rank."""
    parts, rank = _exchange(x, group, size, "all_to_all")
    return np.concatenate([_along(part, 0, rank, size) for part in parts], axis=0)


@all_to_all.infer
def _(x: TensorType, *, group: str, size: int) -> TensorType:
    _group(x, group, size)
    axis_of(x, 0)
    _piece(x, 0, size)
    return x
