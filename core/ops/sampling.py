"""Choosing tokens: a counter-based uniform stream, and sampling with a uniform number given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.dim import require_equal
from ..ir.dtype import float32, int32, uint32
from ..ir.op import Tensor, Tolerance, op, require
from ..ir.types import TensorType
from .elementwise import cast, div, eq, le, logical_and, logical_or, lt, maximum, minimum, mul, sub, where
from .movement import arange, gather, reshape, slice
from .reduction import cumsum, softmax, sum, topk

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = np.uint64(0xFFFFFFFF)


def philox(seed: NDArray[Any], counter: NDArray[Any]) -> NDArray[np.uint64]:
    """The first word of Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

    seed [..., 2] is the key, counter [...] the lowest of the four counter words; the others are zero.
    """
    c0 = counter.astype(np.uint64)
    c1, c2, c3 = np.zeros_like(c0), np.zeros_like(c0), np.zeros_like(c0)
    k0, k1 = seed[..., 0].astype(np.uint64), seed[..., 1].astype(np.uint64)
    for _ in range(10):
        p0, p1 = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (p1 >> np.uint64(32)) ^ c1 ^ k0, p1 & _MASK, (p0 >> np.uint64(32)) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + np.uint64(WEYL[0])) & _MASK, (k1 + np.uint64(WEYL[1])) & _MASK
    return c0


@op(tolerance=Tolerance.EXACT)
def random_uniform(seed: Tensor, counter: Tensor) -> Tensor:
    """One float32 in [0, 1) per (seed, counter): the upper 24 bits of the first Philox4x32-10 word, times 2^-24.

    seed is uint32 [rows, 2], counter uint32 [rows]. There is no hidden state, so the number belonging to a sequence and
    a position does not depend on what else runs.
    """
    return (philox(np.asarray(seed), np.asarray(counter)) >> np.uint64(8)).astype(np.float64) * 2.0**-24


@random_uniform.infer
def _(seed: TensorType, counter: TensorType) -> TensorType:
    require(
        seed.dtype == uint32 and counter.dtype == uint32, f"seed and counter must be uint32, not {seed} and {counter}"
    )
    require(seed.rank == 2 and seed.shape[1] == 2, f"seed must be [rows, 2], not {seed}")
    require(counter.rank == 1, f"counter must be [rows], not {counter}")
    require_equal(seed.shape[0], counter.shape[0], "seed and counter have different numbers of rows")
    return TensorType(float32, counter.shape)


@op(tolerance=Tolerance.STOCHASTIC)
def top_k_top_p_sample(
    logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """One token (int32) per row of `logits` [rows, vocabulary], by inverting the distribution at `uniform` [rows].

    The logits are divided by the temperature and sorted in descending order, equal ones by index. The first `top_k`
    stay (0: all); of their softmax those stay whose preceding probabilities sum to less than `top_p` (Holtzman et al.
    2020), and whose own probability is at least `min_p` times the largest; the first one stays in any case. The result
    is the first kept token at which the running sum of kept probabilities exceeds uniform times their total. A
    temperature of 0 takes the largest logit, the lowest index on ties. All operands but `logits` are [rows]; `top_k` is
    int32, the others float32.
    """
    greedy = temperature <= 0
    scaled = logits / np.where(greedy, 1.0, temperature)[:, None]
    order = np.argsort(-scaled, axis=-1, kind="stable")
    rank = np.arange(logits.shape[-1])
    allowed = (top_k[:, None] <= 0) | (rank < top_k[:, None])
    best = np.where(allowed, np.take_along_axis(scaled, order, axis=-1), -np.inf)
    p = np.exp(best - best[:, :1])
    p = p / np.sum(p, axis=-1, keepdims=True)
    before = np.cumsum(p, axis=-1) - p
    inside = (before < top_p[:, None]) & (p >= min_p[:, None] * p[:, :1]) & allowed
    kept = np.where(inside | (rank == 0), p, 0.0)
    running = np.cumsum(kept, axis=-1)
    passed = np.sum(running <= uniform[:, None] * running[:, -1:], axis=-1)
    last = np.sum(kept > 0, axis=-1) - 1
    chosen = np.where(greedy, 0, np.maximum(np.minimum(passed, last), 0))
    return np.take_along_axis(order, chosen[:, None], axis=-1)[:, 0].astype(np.int32)


@top_k_top_p_sample.infer
def _(
    logits: TensorType,
    uniform: TensorType,
    temperature: TensorType,
    top_k: TensorType,
    top_p: TensorType,
    min_p: TensorType,
) -> TensorType:
    require(logits.rank == 2 and logits.dtype == float32, f"logits must be float32 [rows, vocabulary], not {logits}")
    require(top_k.dtype == int32 and top_k.rank == 1, f"top_k must be int32 [rows], not {top_k}")
    for name, x in (("uniform", uniform), ("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        require(x.dtype == float32 and x.rank == 1, f"{name} must be float32 [rows], not {x}")
    for x in (uniform, temperature, top_k, top_p, min_p):
        require_equal(x.shape[0], logits.shape[0], f"{x} has not one element per row of {logits}")
    return TensorType(int32, (logits.shape[0],))


@top_k_top_p_sample.decompose
def _(logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    rows, size = logits.shape

    def column(x: Tensor) -> Tensor:
        return reshape(x, shape=(rows, 1))

    greedy = le(column(temperature), 0.0)
    scaled = div(logits, where(greedy, 1.0, column(temperature)))
    best, order = topk(scaled, k=size)
    rank = reshape(logits.builder.call(arange, (), {"size": size, "dtype": int32}), shape=(1, size))
    limit = column(top_k)
    allowed = logical_or(le(limit, 0), lt(rank, limit))
    p = softmax(where(allowed, best, -np.inf), axis=-1)
    before = sub(cumsum(p, axis=-1), p)
    first = slice(p, axis=1, start=0, stop=1)
    nucleus = logical_and(lt(before, column(top_p)), le(mul(column(min_p), first), p))
    kept = where(logical_or(logical_and(nucleus, allowed), eq(rank, 0)), p, 0.0)
    running = cumsum(kept, axis=-1)
    total = slice(running, axis=1, start=size - 1, stop=size)
    passed = sum(cast(le(running, mul(column(uniform), total)), dtype=int32), axis=-1, keepdims=True)
    last = sub(sum(cast(lt(0.0, kept), dtype=int32), axis=-1, keepdims=True), 1)
    index = where(greedy, 0, maximum(minimum(passed, last), 0))
    return reshape(gather(order, index, axis=-1), shape=(rows,))
