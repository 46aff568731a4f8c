"""Kernels that move elements, and those that make tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from mindspore import ops as msops

from xinheng.core import ops
from xinheng.core.ir.dtype import DType

from ..tensors import NAMES, to_tensor
from .registry import FLOATS, MINDSPORE_KERNELS, held, indexing, movable, moved


@MINDSPORE_KERNELS.register(ops.reshape, name="mindspore_reshape", when=held)
def reshape(x: Any, *, shape: tuple[int, ...]) -> Any:
    return x.reshape(shape)


@MINDSPORE_KERNELS.register(ops.permute, name="mindspore_permute", when=held)
def permute(x: Any, *, axes: tuple[int, ...]) -> Any:
    return msops.transpose(x, axes) if axes else x


@MINDSPORE_KERNELS.register(ops.expand, name="mindspore_expand", when=held)
def expand(x: Any, *, shape: tuple[int, ...]) -> Any:
    if math.prod(shape) == 0:
        return zeros(shape, x)
    return msops.broadcast_to(x.reshape((1,) * len(shape)) if not x.shape else x, shape)


def zeros(shape: tuple[int, ...], like: Any) -> Any:
    """Zeros in the dtype of another tensor."""
    kind = NAMES[like.dtype]
    return to_tensor(np.zeros(shape, kind.numpy), kind)


@MINDSPORE_KERNELS.register(ops.concat, name="mindspore_concat", when=held)
def concat(*xs: Any, axis: int) -> Any:
    return msops.cat(xs, axis)


def piece(x: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
    """Elements start, start + step, ... below stop along an axis, all within it."""
    axis %= x.ndim
    if start >= stop:
        return zeros((*x.shape[:axis], 0, *x.shape[axis + 1 :]), x)
    return x[(np.s_[:],) * axis + (np.s_[start:stop:step],)]


@MINDSPORE_KERNELS.register(ops.split, name="mindspore_split", when=held)
def split(x: Any, *, sizes: tuple[int, ...], axis: int) -> Any:
    ends = np.cumsum(sizes).tolist()
    pieces = tuple(piece(x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True))
    return pieces[0] if len(pieces) == 1 else pieces


@MINDSPORE_KERNELS.register(ops.slice, name="mindspore_slice", when=held)
def slice(x: Any, *, axis: int, start: int, stop: int, step: int = 1) -> Any:
    return piece(x, axis, start, min(stop, x.shape[axis]), step)


@MINDSPORE_KERNELS.register(ops.index_select, name="mindspore_index_select", when=held)
def index_select(x: Any, indices: Any, *, axis: int = 0) -> Any:
    return moved(msops.gather(movable(x), indexing(indices), axis), x)


@MINDSPORE_KERNELS.register(ops.gather, name="mindspore_gather", when=held)
def gather(x: Any, indices: Any, *, axis: int = -1) -> Any:
    return moved(msops.gather_elements(movable(x), axis, indexing(indices)), x)


@MINDSPORE_KERNELS.register(ops.full, name="mindspore_full", when=held)
def full(*, shape: tuple[int, ...], value: float, dtype: DType) -> Any:
    return to_tensor(np.full(shape, value, np.float64 if dtype.is_float else dtype.numpy), dtype)


@MINDSPORE_KERNELS.register(ops.arange, name="mindspore_arange", dtypes=FLOATS, when=held)
def arange(*, size: int, dtype: DType) -> Any:
    return to_tensor(np.arange(size), dtype)
