"""Sampling kernels: the counter-based stream in 64-bit integer arithmetic, and inversion over sorted probabilities."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops as msops

from xinheng.core import ops
from xinheng.core.ops.sampling import MULTIPLIERS, WEYL

from ..tensors import converted
from .reduction import order_key, softmax_double
from .registry import MINDSPORE_KERNELS, double

_DESCENDING: Any = msops.Sort(-1, True)
_SUM: Any = msops.ReduceSum(True)


def _whole(value: int) -> Any:
    return ms.Tensor(value, ms.int64)


_MASK, _HALF, _BYTE = _whole(0xFFFFFFFF), _whole(32), _whole(8)


def _mulhilo(a: Any, b: Any) -> tuple[Any, Any]:
    """Upper and lower 32 bits of a 32 x 32 bit product; the wrap of int64 leaves both halves right."""
    product = a * b
    return msops.bitwise_and(msops.bitwise_right_shift(product, _HALF), _MASK), msops.bitwise_and(product, _MASK)


@MINDSPORE_KERNELS.register(ops.random_uniform, name="mindspore_random_uniform")
def random_uniform(seed: Any, counter: Any) -> Any:
    multipliers, weyl = map(_whole, MULTIPLIERS), map(_whole, WEYL)
    (m0, m1), (w0, w1), xor = multipliers, weyl, msops.bitwise_xor
    c0, key = converted(counter, ms.int64), converted(seed, ms.int64)
    c1 = c2 = c3 = msops.zeros_like(c0)
    k0, k1 = key[:, 0], key[:, 1]
    for _ in range(10):
        high0, low0 = _mulhilo(c0, m0)
        high1, low1 = _mulhilo(c2, m1)
        c0, c1, c2, c3 = xor(xor(high1, c1), k0), low1, xor(xor(high0, c3), k1), low0
        k0, k1 = msops.bitwise_and(k0 + w0, _MASK), msops.bitwise_and(k1 + w1, _MASK)
    return converted(msops.bitwise_right_shift(c0, _BYTE), ms.float32) * 2.0**-24


@MINDSPORE_KERNELS.register(ops.top_k_top_p_sample, name="mindspore_top_k_top_p_sample")
def top_k_top_p_sample(logits: Any, uniform: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any) -> Any:
    rows, size = logits.shape
    if rows == 0:
        return ms.Tensor(np.zeros(0, np.int32))
    zero, one = ms.Tensor(0.0, ms.float64), ms.Tensor(1.0, ms.float64)
    temperature, uniform, top_p, min_p = (double(x).reshape((rows, 1)) for x in (temperature, uniform, top_p, min_p))
    top_k = top_k.reshape((rows, 1))
    greedy = temperature <= zero
    scaled = double(logits) / msops.select(greedy, one, temperature)
    _, order = _DESCENDING(order_key(converted(scaled, ms.float32)))
    best = msops.gather_elements(scaled, 1, order)
    rank = ms.Tensor(np.arange(size, dtype=np.int32)[None])
    allowed = msops.logical_or(top_k <= 0, rank < top_k)
    p = softmax_double(msops.select(allowed, best, ms.Tensor(-np.inf, ms.float64)))
    before = msops.cumsum(p, 1) - p
    nucleus = msops.logical_and(before < top_p, p >= min_p * p[:, 0:1])
    kept = msops.select(msops.logical_or(msops.logical_and(nucleus, allowed), rank < 1), p, zero)
    running: Any = msops.cumsum(kept, 1)
    passed = _SUM(converted(running <= uniform * running[:, size - 1 : size], ms.int32), 1)
    last = _SUM(converted(kept > zero, ms.int32), 1) - 1
    chosen = msops.maximum(msops.minimum(passed, last), ms.Tensor(0, ms.int32))
    chosen = msops.select(greedy, ms.Tensor(0, ms.int32), chosen)
    return msops.gather_elements(order, 1, chosen).reshape((rows,))
