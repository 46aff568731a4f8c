"""Convolutions by torch over one to three axes; more axes are left to the decomposition."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from xinheng.core import ops
from xinheng.core.ir.graph import Node

from .elementwise import wide
from .registry import FLOATS, TORCH_KERNELS, calculated

Tensor = torch.Tensor

_CONV = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def spread(pads: tuple[int, ...]) -> list[int]:
    """Pads (all begins, all ends) in the order of torch: begin and end of each axis, last axis first."""
    n = len(pads) // 2
    return [size for i in reversed(range(n)) for size in (pads[i], pads[n + i])]


def _each(x: Tensor, convolve: Callable[[Tensor], Tensor]) -> Tensor:
    """One sample after the other: libraries choose by the size of the batch in which order they add."""
    if x.shape[0] < 2:
        return convolve(x)
    return torch.cat([convolve(one.contiguous()) for one in torch.split(x, 1)])


def _taken(node: Node) -> bool | str:
    x = node.operands[0]
    assert x is not None
    if x.dtype not in FLOATS:
        return f"torch convolves its usual floats only, not {x.dtype}"
    if x.tensor.rank > 5:
        return "torch convolves over at most three axes"
    return calculated(node)


@TORCH_KERNELS.register(ops.conv, name="torch_conv", when=_taken)
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    n = len(strides)
    wider, added = wide(x), None if bias is None else wide(bias)
    symmetric = pads[:n] == pads[n:]
    if not symmetric:
        wider = F.pad(wider, spread(pads))
    kernel, padding = wide(weight), pads[:n] if symmetric else 0
    y = _each(wider, lambda one: _CONV[n - 1](one, kernel, added, strides, padding, dilations, groups))
    return y.to(x.dtype)


@TORCH_KERNELS.register(ops.conv_transpose, name="torch_conv_transpose", when=_taken)
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int = 1,
) -> Tensor:
    n = len(strides)
    kernel = wide(weight)
    y = _each(wide(x), lambda one: _TRANSPOSED[n - 1](one, kernel, None, strides, 0, 0, groups, dilations))
    cut = [c for i in reversed(range(n)) for c in (-pads[i], output_padding[i] - pads[n + i])]
    y = F.pad(y, cut)
    if bias is not None:
        y = y + wide(bias).reshape(-1, *(1,) * n)
    return y.to(x.dtype)
