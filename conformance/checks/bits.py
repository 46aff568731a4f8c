"""Results compared bit by bit, which is how determinism is checked; one NaN is as good as another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.ir.dtype import DTYPES


def flat(results: Iterable[Any]) -> tuple[NDArray[Any], ...]:
    """Results as arrays, the pages of states one by one."""
    made: list[NDArray[Any]] = []
    for result in results:
        made.extend(result if isinstance(result, tuple) else (np.asarray(result),))
    return tuple(made)


def image(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bits of an array, a row of bytes per element, with the same bits in each NaN."""
    kind = DTYPES.get(array.dtype.name)
    made = np.ascontiguousarray(array)
    if kind is not None and kind.is_float:
        unknown = np.isnan(made)
        if unknown.any():
            made = np.where(unknown, np.array(np.nan, made.dtype), made)
    return made.reshape(-1, 1).view(np.uint8)


def same(a: Iterable[Any], b: Iterable[Any]) -> bool:
    """Whether results have the same sizes, types and bits."""
    return difference(a, b) is None


def difference(a: Iterable[Any], b: Iterable[Any]) -> str | None:
    """Where results first differ, in words; None if they have the same sizes, types and bits."""
    ours, theirs = flat(a), flat(b)
    if len(ours) != len(theirs):
        return f"{len(ours)} results against {len(theirs)}"
    for i, (x, y) in enumerate(zip(ours, theirs, strict=True)):
        what = f"result {i}" if len(ours) > 1 else "the result"
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{what} is {x.dtype.name}{list(x.shape)} against {y.dtype.name}{list(y.shape)}"
        unequal = np.flatnonzero((image(x) != image(y)).any(axis=1))
        if unequal.size:
            at = np.unravel_index(int(unequal[0]), x.shape)
            place = f"at {[int(n) for n in at]} {x[at]!s} against {y[at]!s}"
            return f"{unequal.size} of {x.size} elements of {what} differ, {place}"
    return None


def digest(results: Iterable[Any]) -> str:
    """A short hash of results."""
    made = hashlib.blake2b(digest_size=8)
    for array in flat(results):
        made.update(f"{array.dtype.name}{array.shape}".encode())
        made.update(image(array).tobytes())
    return made.hexdigest()
