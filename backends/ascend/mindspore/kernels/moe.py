"""Mixtures of experts: sorting by expert, and one product per expert."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import ops as msops

from xinheng.core import ops
from xinheng.core.ir.dtype import int32

from ..handles import MindSporeWeight
from ..tensors import to_tensor
from .contraction import linear
from .movement import index_select, piece, zeros
from .registry import FLOATS, MINDSPORE_KERNELS, calculated


@MINDSPORE_KERNELS.register(ops.moe_permute, name="mindspore_moe_permute", when=calculated)
def moe_permute(x: Any, experts: Any, *, num_experts: int) -> tuple[Any, Any, Any]:
    # MindSpore has no stable sort of integers and no bincount; the choices are few
    flat = experts.asnumpy().reshape(-1)
    order = np.argsort(flat, kind="stable").astype(np.int32)
    counts = np.bincount(flat, minlength=num_experts).astype(np.int32)
    rows = index_select(x, to_tensor(order // max(experts.shape[1], 1), int32), axis=0) if order.size else x[:0]
    return rows, to_tensor(order, int32), to_tensor(counts, int32)


@MINDSPORE_KERNELS.register(ops.grouped_linear, name="mindspore_grouped_linear", dtypes=FLOATS)
def grouped_linear(x: Any, weight: MindSporeWeight, counts: Any) -> Any:
    made, start = [], 0
    for group, count in enumerate(counts.asnumpy().tolist()):
        if count:
            made.append(linear(piece(x, 0, start, start + count), weight.group(group)))
            start += count
    if not made:
        return zeros((0, weight.shape[1]), x)
    return made[0] if len(made) == 1 else msops.cat(tuple(made), 0)
