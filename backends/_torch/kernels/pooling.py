"""Pools in plain torch: one strided view per place in a window, combined one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
import torch.nn.functional as F

from xinheng.core import ops
from xinheng.core.ops.pooling import lowest
from xinheng.core.ops.windows import window_counts

from ..handles import NAMES
from .convolution import spread
from .elementwise import wide
from .registry import FLOATS, TORCH_KERNELS, calculated

Tensor = torch.Tensor


def _views(
    x: Tensor, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> Iterator[Tensor]:
    counts = window_counts(tuple(x.shape[2:]), kernel, strides, (0,) * (2 * len(kernel)), dilations)
    for place in product(*map(range, kernel)):
        view = x
        for i, (k, count) in enumerate(zip(place, counts, strict=True)):
            assert isinstance(count, int)
            start = k * dilations[i]
            view = view[(slice(None),) * (2 + i) + (slice(start, start + (count - 1) * strides[i] + 1, strides[i]),)]
        yield view


@TORCH_KERNELS.register(ops.max_pool, name="torch_max_pool", when=calculated)
def max_pool(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
) -> Tensor:
    bottom = lowest(NAMES[x.dtype].numpy) if not x.is_floating_point() else -torch.inf
    filled = F.pad(x, spread(pads), value=bottom) if any(pads) else x
    first, *rest = _views(filled, kernel, strides, dilations)
    for view in rest:
        first = torch.maximum(first, view)
    return first.clone() if not rest else first


@TORCH_KERNELS.register(ops.average_pool, name="torch_average_pool", dtypes=FLOATS)
def average_pool(
    x: Tensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    count_pads: bool = False,
) -> Tensor:
    filled = F.pad(wide(x), spread(pads)) if any(pads) else wide(x)
    first, *rest = _views(filled, kernel, strides, dilations)
    for view in rest:
        first = first + view
    total = 1
    for size in kernel:
        total *= size
    if count_pads or not any(pads):
        return (first / total).to(x.dtype)
    ones = F.pad(torch.ones((1, 1, *x.shape[2:]), dtype=first.dtype, device=x.device), spread(pads))
    inside, *others = _views(ones, kernel, strides, dilations)
    for view in others:
        inside = inside + view
    return (first / inside).to(x.dtype)
