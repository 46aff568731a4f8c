"""Choosing tokens: a counter-based uniform stream, and sampling with a uniform number given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.dim import require_equal
from ..ir.dtype import float32, int32, uint32
from ..ir.op import Tensor, Tolerance, op, require
from ..ir.types import TensorType
from .elementwise import cast, div, eq, le, logical_and, logical_not, logical_or, lt, maximum, minimum, mul, sub, where
from .movement import arange, concat, expand, full, gather, reshape, slice
from .reduction import amax, cumsum, softmax, sum, topk

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


@op(tolerance=Tolerance.STOCHASTIC)
def rejection_sample(draft_ids: Tensor, draft_probs: Tensor, target_probs: Tensor, uniform: Tensor) -> Tensor:
    """Drafted tokens as far as they stay, with the token after them, and how many stay (Leviathan et al. 2023).

    draft_ids is int32 [rows, drafts], draft_probs float32 [rows, drafts, vocabulary], target_probs float32
    [rows, drafts + 1, vocabulary], uniform float32 [rows, drafts + 1] in [0, 1). Draft i stays while
    uniform[i] * draft_probs[i, id] < target_probs[i, id]; the first that does not ends the run, and so does an id of
    -1, which stands for no draft. The next token inverts, at the last uniform number, max(target - draft, 0) of the
    place where the run ended, or the target itself where nothing was drafted: it is the first token at which the
    running sum exceeds the number times the total. The results are int32 [rows, drafts + 1], -1 behind the tokens, and
    int32 [rows].
    """
    rows, drafts, size = draft_probs.shape
    real, index = draft_ids >= 0, np.maximum(np.asarray(draft_ids), 0)[..., None]
    drafted = np.take_along_axis(draft_probs, index, axis=-1)[..., 0]
    wanted = np.take_along_axis(target_probs[:, :drafts], index, axis=-1)[..., 0]
    stays = real & (uniform[:, :drafts] * drafted < wanted)
    accepted = np.sum(np.cumsum(~stays, axis=1) == 0, axis=1)
    place = np.broadcast_to(accepted[:, None, None], (rows, 1, size))
    target = np.take_along_axis(target_probs, place, axis=1)[:, 0]
    taken = np.concatenate([np.where(real[..., None], draft_probs, 0.0), np.zeros((rows, 1, size))], axis=1)
    rest = np.maximum(target - np.take_along_axis(taken, place, axis=1)[:, 0], 0.0)
    rest = np.where(np.sum(rest, axis=-1, keepdims=True) > 0, rest, target)
    running = np.cumsum(rest, axis=-1)
    passed = np.sum(running <= uniform[:, drafts:] * running[:, -1:], axis=-1)
    token = np.minimum(passed, np.max(np.where(rest > 0, np.arange(size), 0), axis=-1))
    ids = np.concatenate([np.asarray(draft_ids), np.full((rows, 1), -1)], axis=1)
    rank = np.arange(drafts + 1)
    ids = np.where(rank < accepted[:, None], ids, np.where(rank == accepted[:, None], token[:, None], -1))
    return ids.astype(np.int32), accepted.astype(np.int32)


@rejection_sample.infer
def _(
    draft_ids: TensorType, draft_probs: TensorType, target_probs: TensorType, uniform: TensorType
) -> tuple[TensorType, TensorType]:
    require(
        draft_ids.dtype == int32 and draft_ids.rank == 2, f"draft_ids must be int32 [rows, drafts], not {draft_ids}"
    )
    rows, drafts = draft_ids.shape
    for name, x, rank in (("draft_probs", draft_probs, 3), ("target_probs", target_probs, 3), ("uniform", uniform, 2)):
        require(x.dtype == float32 and x.rank == rank, f"{name} must be float32 of {rank} axes, not {x}")
        require_equal(x.shape[0], rows, f"{name} {x} has not the rows of {draft_ids}")
        places = drafts if x is draft_probs else drafts + 1
        require_equal(x.shape[1], places, f"{name} {x} does not fit the drafts of {draft_ids}")
    require_equal(draft_probs.shape[2], target_probs.shape[2], "draft_probs and target_probs differ in vocabulary")
    return TensorType(int32, (rows, drafts + 1)), TensorType(int32, (rows,))


@rejection_sample.decompose
def _(draft_ids: Tensor, draft_probs: Tensor, target_probs: Tensor, uniform: Tensor) -> Tensor:
    rows, drafts, size = draft_probs.shape

    def made(kind: Any, shape: Any, value: float) -> Tensor:
        return draft_ids.builder.call(full, (), {"shape": shape, "value": value, "dtype": kind})

    def counted(length: Any) -> Tensor:
        return reshape(draft_ids.builder.call(arange, (), {"size": length, "dtype": int32}), shape=(1, length))

    real = le(0, draft_ids)
    index = reshape(maximum(draft_ids, 0), shape=(rows, drafts, 1))
    drafted = reshape(gather(draft_probs, index, axis=2), shape=(rows, drafts))
    before = slice(target_probs, axis=1, start=0, stop=drafts)
    wanted = reshape(gather(before, index, axis=2), shape=(rows, drafts))
    stays = logical_and(real, lt(mul(slice(uniform, axis=1, start=0, stop=drafts), drafted), wanted))
    failures = cumsum(cast(logical_not(stays), dtype=int32), axis=1)
    accepted = sum(cast(eq(failures, 0), dtype=int32), axis=1, keepdims=True)
    place = expand(reshape(accepted, shape=(rows, 1, 1)), shape=(rows, 1, size))
    target = reshape(gather(target_probs, place, axis=1), shape=(rows, size))
    taken = where(reshape(real, shape=(rows, drafts, 1)), draft_probs, 0.0)
    taken = concat(taken, made(float32, (rows, 1, size), 0.0), axis=1)
    rest = maximum(sub(target, reshape(gather(taken, place, axis=1), shape=(rows, size))), 0.0)
    rest = where(lt(0.0, sum(rest, axis=1, keepdims=True)), rest, target)
    running = cumsum(rest, axis=1)
    limit = mul(
        slice(uniform, axis=1, start=drafts, stop=drafts + 1), slice(running, axis=1, start=size - 1, stop=size)
    )
    passed = sum(cast(le(running, limit), dtype=int32), axis=1, keepdims=True)
    token = minimum(passed, amax(where(lt(0.0, rest), counted(size), 0), axis=1, keepdims=True))
    ids = concat(draft_ids, made(int32, (rows, 1), -1), axis=1)
    rank = counted(drafts + 1)
    ids = where(lt(rank, accepted), ids, where(eq(rank, accepted), token, -1))
    return ids, reshape(accepted, shape=(rows,))
