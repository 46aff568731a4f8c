"""Matrix products and the readers of weights; packed weights are expanded a few rows at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from xinheng.core import ops
from xinheng.core.ir.dtype import DType

from ..handles import DTYPES, TorchWeight
from .elementwise import wide
from .registry import FLOATS, TORCH_KERNELS, calculated

Tensor = torch.Tensor

_CHUNK_VALUES = 1 << 22
"""How many values of a packed weight are expanded at once."""


@TORCH_KERNELS.register(ops.matmul, name="torch_matmul", when=calculated)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(wide(a), wide(b)).to(a.dtype) if _flushed(a) else torch.matmul(a, b)


def _flushed(x: Tensor) -> bool:
    """Whether its subnormal numbers may be missing in products, as in those of processors with bfloat16 units."""
    return x.dtype is torch.bfloat16 and x.device.type == "cpu"


@TORCH_KERNELS.register(ops.linear, name="torch_linear", dtypes=FLOATS)
def linear(x: Tensor, weight: TorchWeight, bias: Tensor | None = None) -> Tensor:
    if len(weight.parts) == 1 and weight.parts[0].data.dtype is x.dtype and not _flushed(x):
        return F.linear(x, weight.parts[0].data, bias)
    rows, columns = weight.shape
    out = torch.empty((*x.shape[:-1], rows), dtype=x.dtype, device=x.device)
    flat, added = wide(x), None if bias is None else wide(bias)
    for first, values in weight.chunks(flat.dtype, max(1, _CHUNK_VALUES // columns)):
        last = first + values.shape[0]
        out[..., first:last] = F.linear(flat, values, None if added is None else added[first:last])
    return out


@TORCH_KERNELS.register(ops.embedding, name="torch_embedding", dtypes=FLOATS)
def embedding(indices: Tensor, weight: TorchWeight, *, dtype: DType) -> Tensor:
    flat, kind = indices.reshape(-1).long(), DTYPES[dtype]
    if len(weight.parts) == 1:
        return weight.parts[0].take(flat, kind).reshape(*indices.shape, weight.shape[1])
    out = torch.zeros((flat.numel(), weight.shape[1]), dtype=kind, device=indices.device)
    first = 0
    for part in weight.parts:  # no number of rows is asked for, so nothing waits for the device
        inside = (flat >= first) & (flat < first + part.rows)
        picked = part.take((flat - first).clamp(0, part.rows - 1), kind)
        out = torch.where(inside[:, None], picked, out)
        first += part.rows
    return out.reshape(*indices.shape, weight.shape[1])


@TORCH_KERNELS.register(ops.dequantize, name="torch_dequantize", dtypes=FLOATS)
def dequantize(weight: TorchWeight, *, dtype: DType) -> Tensor:
    pieces = [part.unpack(0, part.rows, DTYPES[dtype]) for part in weight.parts]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
