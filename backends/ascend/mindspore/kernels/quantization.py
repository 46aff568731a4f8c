"""Products of codes; the other ops on codes are composed of elementwise ones."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import ops as msops

from xinheng.core import ops

from ..tensors import converted
from .registry import MINDSPORE_KERNELS

_CHUNK = 256
"""float32 holds sums of so many products of eight-bit integers exactly."""


@MINDSPORE_KERNELS.register(ops.int_matmul, name="mindspore_int_matmul")
def int_matmul(a: Any, b: Any) -> Any:
    wide_a, wide_b = converted(a, ms.float32), converted(b, ms.float32)
    total = None
    for start in range(0, a.shape[-1], _CHUNK):
        part = msops.matmul(wide_a[..., start : start + _CHUNK], wide_b[..., start : start + _CHUNK, :])
        whole = converted(part, ms.int32)
        total = whole if total is None else total + whole
    if total is None:
        shape = msops.matmul(msops.ones((*a.shape[:-1], 1)), msops.ones((*b.shape[:-2], 1, b.shape[-1]))).shape
        return msops.zeros(shape, ms.int32)
    return total
