"""Mutants of ops that move elements: order, ends, indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from xinheng.core.ops import OPSET
from xinheng.core.ops.indexing import COMBINE

from ..call import Call
from .mutant import faulty, given, having, operand, saying, spoiled, wrong

wrong("reshape", "by columns", "reads elements by columns", lambda x, *, shape: np.reshape(x, shape, order="F"))


def _inverse(x: Any, *, axes: tuple[int, ...]) -> Any:
    """The inverse permutation where the shape allows it."""
    other = np.transpose(x, np.argsort(axes))
    right = np.transpose(x, axes)
    return other if other.shape == right.shape else np.reshape(other, right.shape)


wrong("permute", "inverse", "takes where axes go for where they come from", _inverse)
wrong("concat", "reversed", "joins parts in reverse", lambda *xs, axis: np.concatenate(xs[::-1], axis=axis))


def _stretched(x: Any, *, shape: tuple[int, ...]) -> Any:
    """The first elements repeated instead of the axis."""
    whole = np.broadcast_to(x, shape)
    return np.reshape(np.resize(np.ravel(x), whole.size), shape) if x.size else whole


wrong("expand", "tiled", "repeats the whole instead of the axis", _stretched)


def _split_late(x: Any, *, sizes: tuple[int, ...], axis: int) -> Any:
    return OPSET["split"].reference(np.roll(x, -1, axis=axis), sizes=sizes, axis=axis)


wrong("split", "one late", "starts every piece one element late", _split_late)


def _slice(change: Any) -> Any:
    """A slice elsewhere, of the shape that is promised."""

    def program(x: Any, *, axis: int, start: int, stop: int, step: int = 1) -> Any:
        right = OPSET["slice"].reference(x, axis=axis, start=start, stop=stop, step=step)
        indices = np.arange(x.shape[axis])[start:stop:step]
        return np.take(x, change(indices, start, step) % max(x.shape[axis], 1), axis=axis) if indices.size else right

    return program


wrong("slice", "one late", "starts one element late", _slice(lambda i, start, step: i + 1))
wrong("slice", "step ignored", "takes neighbours", _slice(lambda i, start, step: start + np.arange(i.size)))
wrong("slice", "start ignored", "starts at the first element", _slice(lambda i, start, step: i - start))


def _indices(change: Any) -> Any:
    """Other indices, within range."""

    def changed(call: Call) -> Call | None:
        x, indices = call.values[0], np.asarray(operand(call, "indices"))
        axis = call.attributes.get("axis", -1 if call.op == "gather" else 0)
        size = np.asarray(x).shape[axis]
        return having(call, indices=change(indices, size) % max(size, 1)) if indices.size else None

    return changed


GATHERS = "gather index_select scatter"
given(GATHERS, "next index", "counts indices from one", _indices(lambda i, size: i + 1))
given(GATHERS, "from the end", "counts indices from the end", _indices(lambda i, size: size - 1 - i))
given("gather", "first row", "takes the indices of the first row for all", lambda call: _first_row(call))


def _first_row(call: Call) -> Call | None:
    indices = np.asarray(operand(call, "indices"))
    if indices.ndim < 2 or not indices.size:
        return None
    return having(call, indices=np.broadcast_to(indices[:1], indices.shape))


given("embedding", "next row", "counts rows from one", lambda call: _next_row(call))


def _next_row(call: Call) -> Call:
    rows = operand(call, "weight").shape[0]
    return having(call, indices=(np.asarray(operand(call, "indices")) + 1) % rows)


given("embedding", "8-bit indices", "reads the low byte of indices only", lambda call: _low_byte(call))


def _low_byte(call: Call) -> Call:
    return having(call, indices=np.asarray(operand(call, "indices")) & 255)


wrong(
    "arange", "from one", "starts at one", lambda *, size, dtype: OPSET["arange"].reference(size=size, dtype=dtype) + 1
)


def _full(*, shape: Any, value: Any, dtype: Any) -> Any:
    made = OPSET["full"].reference(shape=shape, value=value, dtype=dtype)
    return np.nan_to_num(made, neginf=-65504.0) if made.dtype.kind == "f" else made


wrong("full", "finite", "writes the largest number for infinity", _full)
wrong(
    "full",
    "first element",
    "writes the first element only",
    lambda *, shape, value, dtype: _only_first(OPSET["full"].reference(shape=shape, value=value, dtype=dtype)),
)


def _only_first(x: Any) -> Any:
    return np.where(np.reshape(np.arange(x.size), x.shape) == 0, x, np.zeros_like(x))


# ------------------------------------------------------------------------------------------------- scatter and places
def _scatter(x: Any, indices: Any, updates: Any, *, axis: int, reduction: str = "none", fault: str) -> Any:
    reference = OPSET["scatter"].reference
    if fault == "race":
        # of several updates of one place one is lost: all start from what was there
        once = reference(x, indices, updates, axis=axis, reduction="none")
        touched = reference(np.zeros(np.shape(x)), indices, np.ones(np.shape(updates)), axis=axis)
        return once if reduction == "none" else np.where(touched > 0, COMBINE[reduction](x, once), x)
    return reference(x * 0, indices, updates, axis=axis, reduction=reduction)


faulty(
    "scatter",
    _scatter,
    {"race": "loses all but one of several updates of a place", "from zero": "forgets what was there"},
)


def _reduction(call: Call) -> Call:
    other = {"none": "add", "add": "none", "mul": "none", "max": "min", "min": "max"}
    return saying(call, reduction=other[call.attributes.get("reduction", "none")])


given("scatter", "other reduction", "does another reduction", _reduction)


def _by_columns(x: Any) -> Any:
    places = np.stack(np.nonzero(np.transpose(np.asarray(x) != 0)))
    return np.flip(places, axis=0).astype(np.int64)


wrong("nonzero", "by columns", "lists places by columns", _by_columns)
wrong("nonzero", "nan zero", "takes NaN for zero", lambda x: np.stack(np.nonzero((x > 0) | (x < 0))).astype(np.int64))


def _stale_tail(call: Call, made: Any) -> Any:
    """The last element is whatever was there."""
    copies = [np.array(x) for x in made]
    for x in copies:
        if x.size:
            x.flat[-1] = 1 if x.dtype == bool else 77
    return tuple(copies)


spoiled(
    "reshape permute expand concat split slice index_select gather where all_gather all_to_all",
    "tail not written",
    "never writes the last element",
    _stale_tail,
)
