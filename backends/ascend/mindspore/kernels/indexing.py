"""Kernels that write to computed places, updates of one place in their order; MindSpore itself adds them in any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops as msops
from numpy.typing import NDArray

from xinheng.core import ops
from xinheng.core.ir.dtype import int64

from ..tensors import converted, to_tensor
from .elementwise import nan_kept
from .registry import MINDSPORE_KERNELS, calculated, movable, moved, narrow, wide

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": msops.add,
    "mul": msops.mul,
    "max": nan_kept(msops.maximum),
    "min": nan_kept(msops.minimum),
}


@MINDSPORE_KERNELS.register(ops.scatter, name="mindspore_scatter", when=calculated)
def scatter(x: Any, indices: Any, updates: Any, *, axis: int, reduction: str = "none") -> Any:
    combine = _COMBINE.get(reduction)
    taken, restored = (movable, moved) if combine is None else (wide, narrow)
    where: list[Any] = list(np.indices(indices.shape))
    where[axis] = indices.asnumpy()
    places = np.ravel_multi_index(tuple(where), x.shape).reshape(-1)
    held, new = taken(x).reshape((-1,)), taken(updates).reshape((-1,))
    for some in _turns(places):
        at, values = to_tensor(places[some], int64), msops.gather(new, to_tensor(some, int64), 0)
        if combine is not None:
            values = combine(msops.gather(held, at, 0), values)
        held = msops.tensor_scatter_elements(held, at, values, 0)
    return restored(held.reshape(x.shape), x)


def _turns(places: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Indices of places, in as few groups as have no place twice; equal ones in their order."""
    order = np.argsort(places, kind="stable")
    turn = np.empty(places.size, int)
    turn[order] = np.arange(places.size) - np.searchsorted(places[order], places[order])
    for number in range(int(turn.max(initial=-1)) + 1):
        yield np.flatnonzero(turn == number)


@MINDSPORE_KERNELS.register(ops.nonzero, name="mindspore_nonzero", when=calculated)
def nonzero(x: Any) -> Any:
    if not x.size:
        return to_tensor(np.zeros((x.ndim, 0)), int64)
    there = x if x.dtype == ms.bool_ else msops.not_equal(wide(x), 0)
    return converted(msops.transpose(msops.nonzero(there), (1, 0)), ms.int64)
