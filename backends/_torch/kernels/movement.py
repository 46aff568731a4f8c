"""Kernels that move elements, and those that make tensors; most are views."""

from __future__ import annotations

import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import DType

from ..handles import DTYPES
from .registry import CALCULATED, FLOATS, TORCH_KERNELS, held

Tensor = torch.Tensor


@TORCH_KERNELS.register(ops.reshape, name="torch_reshape", when=held)
def reshape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return x.reshape(shape)


@TORCH_KERNELS.register(ops.permute, name="torch_permute", when=held)
def permute(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    return x.permute(axes)


@TORCH_KERNELS.register(ops.expand, name="torch_expand", when=held)
def expand(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return x.expand(shape)


@TORCH_KERNELS.register(ops.concat, name="torch_concat", when=held)
def concat(*xs: Tensor, axis: int) -> Tensor:
    return torch.cat(xs, dim=axis)


@TORCH_KERNELS.register(ops.split, name="torch_split", when=held)
def split(x: Tensor, *, sizes: tuple[int, ...], axis: int) -> tuple[Tensor, ...] | Tensor:
    pieces = torch.split(x, list(sizes), dim=axis)
    return pieces[0] if len(pieces) == 1 else tuple(pieces)


@TORCH_KERNELS.register(ops.slice, name="torch_slice", when=held)
def slice(x: Tensor, *, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    size = x.shape[axis]
    start = min(start, size)
    stop = max(min(stop, size), start)
    piece = torch.narrow(x, axis, start, stop - start)
    return piece if step == 1 else piece.movedim(axis, 0)[::step].movedim(0, axis)


@TORCH_KERNELS.register(ops.index_select, name="torch_index_select", when=held)
def index_select(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis %= x.dim()
    flat = torch.index_select(_selectable(x), axis, indices.reshape(-1).long()).view(x.dtype)
    return flat.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


@TORCH_KERNELS.register(ops.gather, name="torch_gather", when=held)
def gather(x: Tensor, indices: Tensor, *, axis: int = -1) -> Tensor:
    return torch.take_along_dim(_selectable(x), indices.long(), dim=axis).view(x.dtype)


def _selectable(x: Tensor) -> Tensor:
    """The bits of a tensor where torch selects no elements of its dtype, as of float8 and wide unsigned integers."""
    return x if x.dtype in _SELECTED else x.view(_BITS[x.element_size()])


_SELECTED = frozenset(DTYPES[kind] for kind in CALCULATED)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def register_makers(registry: KernelRegistry, device: torch.device) -> None:
    """Enter the kernels of ops without operands, which have to know their device."""

    @registry.register(ops.full, name="torch_full", when=held)
    def full(*, shape: tuple[int, ...], value: float, dtype: DType) -> Tensor:
        return torch.full(shape, value, dtype=DTYPES[dtype], device=device)

    @registry.register(ops.arange, name="torch_arange", dtypes=FLOATS, when=held)
    def arange(*, size: int, dtype: DType) -> Tensor:
        # half formats through float32: in bfloat16 torch adds the start of a vector to its lanes after rounding it
        made = torch.arange(
            size, dtype=torch.float32 if dtype.bits == 16 and dtype.is_float else DTYPES[dtype], device=device
        )
        return made.to(DTYPES[dtype])
