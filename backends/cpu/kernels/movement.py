"""Ops that move elements: views of numpy where rows stay whole, copies elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry

from ..arrays import Array
from .library import Library


def register_movement(registry: KernelRegistry, library: Library, priority: int) -> None:
    """Enter these kernels, which take all element types; what they copy is in memory of `library`."""
    for op, kernel in (
        (ops.reshape, reshape),
        (ops.permute, permute),
        (ops.expand, expand),
        (ops.split, split),
        (ops.slice, slice_),
        (ops.concat, concat_kernel(library)),
    ):
        registry.register(op, name=f"numpy_{op.name}", priority=priority)(kernel)


def reshape(x: Array, *, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


def permute(x: Array, *, axes: tuple[int, ...]) -> Array:
    return x.transpose(axes)


def expand(x: Array, *, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(x, shape)


def split(x: Array, *, sizes: tuple[int, ...], axis: int) -> tuple[Array, ...] | Array:
    pieces = np.split(x, np.cumsum(sizes)[:-1], axis=axis)
    return pieces[0] if len(pieces) == 1 else tuple(pieces)


def slice_(x: Array, *, axis: int, start: int, stop: int, step: int = 1) -> Array:
    at = (slice(None),) * (axis % x.ndim)
    return x[(*at, slice(start, stop, step))]


def concat_kernel(library: Library) -> Callable[..., Array]:
    """The kernel of `concat`."""

    def concat(*xs: Array, axis: int) -> Array:
        shape = list(xs[0].shape)
        shape[axis] = sum(x.shape[axis] for x in xs)
        return np.concatenate(xs, axis=axis, out=library.empty(shape, xs[0].dtype))

    return concat
