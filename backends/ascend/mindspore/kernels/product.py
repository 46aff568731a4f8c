"""Products along an axis, factor by factor, in at least float32."""

from __future__ import annotations

from typing import Any

from mindspore import ops as msops

from xinheng.core import ops

from .movement import piece
from .registry import MINDSPORE_KERNELS, calculated, narrow, wide


def _factors(x: Any, axis: int) -> list[Any]:
    return [piece(wide(x), axis, i, i + 1) for i in range(x.shape[axis])]


@MINDSPORE_KERNELS.register(ops.prod, name="mindspore_prod", when=calculated)
def prod(x: Any, *, axis: int, keepdims: bool = False) -> Any:
    axis %= x.ndim
    before, behind = x.shape[:axis], x.shape[axis + 1 :]
    shape = (*before, *((1,) if keepdims else ()), *behind)
    first, *rest = _factors(x, axis) or [msops.ones((*before, 1, *behind), wide(x).dtype)]
    for factor in rest:
        first = first * factor
    return narrow(first.reshape(shape), x)


@MINDSPORE_KERNELS.register(ops.cumprod, name="mindspore_cumprod", when=calculated)
def cumprod(x: Any, *, axis: int) -> Any:
    if not x.size:
        return x
    first, *rest = _factors(x, axis)
    made = [first]
    for factor in rest:
        made.append(made[-1] * factor)
    return narrow(msops.cat(tuple(made), axis), x)
