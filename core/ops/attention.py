"""The paged key-value cache and attention over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir import numeric
from ..ir.dim import require_equal
from ..ir.dtype import float32, int8
from ..ir.op import State, Tensor, Tolerance, op, require
from ..ir.types import StateType, TensorType
from .movement import integer
from .quantization import dynamic_quant
from .states import KVPages, QuantizedKVPages


def quantized(k: Any, v: Any) -> QuantizedKVPages:
    """Keys and values [..., dim] as a cache of scheme int8 holds them: the codes and scales of `dynamic_quant`."""
    (k_codes, k_scale), (v_codes, v_scale) = (dynamic_quant.reference(x, dtype=int8) for x in (k, v))
    return QuantizedKVPages(k_codes, v_codes, k_scale[..., 0], v_scale[..., 0])


def values(cache: KVPages | QuantizedKVPages) -> tuple[Any, Any]:
    """The keys and values that pages, or rows of them, hold."""
    if isinstance(cache, KVPages):
        return cache.k, cache.v
    scaled = (cache.k * np.expand_dims(cache.k_scale, -1), cache.v * np.expand_dims(cache.v_scale, -1))
    k, v = (numeric.store(x, float32) for x in scaled)
    return k, v


def _paged_kv(cache: StateType) -> StateType:
    require(cache.kind == "paged_kv", f"the cache must be paged_kv, not {cache}")
    return cache


@op(tolerance=Tolerance.EXACT)
def write_cache(cache: State, k: Tensor, v: Tensor, slots: Tensor) -> State:
    """Store one key and one value per token: slot = block * block_size + offset; slot -1 writes nothing.

    k is [tokens, heads, k_dim], v [tokens, heads, v_dim], slots [tokens] integers. Values are rounded once to the dtype
    of the cache; one of scheme int8 gets the codes and scales of `dynamic_quant`, a scale per token and head, which are
    not defined for infinities and NaN. Which of two tokens that name one slot stays is not defined; here it is the
    later one.
    """
    if k.shape[0] == 0:
        return cache
    new = KVPages(k, v) if isinstance(cache, KVPages) else quantized(k, v)
    return type(cache)(*(scatter_slots(pages, rows, slots) for pages, rows in zip(cache, new, strict=True)))


def scatter_slots(pages: Any, new: Any, slots: Any) -> Any:
    """Pages [blocks, block_size, ...] with new [tokens, ...] in the given slots; as `write_cache` says."""
    writer = np.full(pages.shape[0] * pages.shape[1], -1)
    valid = np.flatnonzero(np.asarray(slots) >= 0)
    writer[np.asarray(slots)[valid]] = valid
    written = np.reshape(writer >= 0, (-1,) + (1,) * (len(pages.shape) - 2))
    flat = np.reshape(pages, (-1, *pages.shape[2:]))
    return np.reshape(np.where(written, np.take(new, np.maximum(writer, 0), axis=0), flat), pages.shape)


@write_cache.infer
def _(cache: StateType, k: TensorType, v: TensorType, slots: TensorType) -> StateType:
    _paged_kv(cache)
    integer(slots, "slots", 1)
    for name, x, width in (("k", k, cache["k_dim"]), ("v", v, cache["v_dim"])):
        require(
            x.dtype.is_float and x.shape[1:] == (cache["heads"], width),
            f"{name} is {x}, the cache holds [{cache['heads']}, {width}]",
        )
        require_equal(x.shape[0], slots.shape[0], f"{name} and slots have different numbers of tokens")
    return cache


@op(tolerance=Tolerance.ATTENTION)
def paged_attention(
    q: Tensor,
    cache: State,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    causal: bool = True,
) -> Tensor:
    """Attention of each query over the cached keys of its sequence: the output, and the log-sum-exp of its logits.

    q is [tokens, heads, k_dim]; `query_start` int32 [seqs + 1] ascends from 0, `seq_lens` is int32 [seqs] and
    `block_table` int32 [seqs, blocks]. Rows query_start[s] to query_start[s + 1] belong to sequence s, whose keys are
    at positions 0 to seq_lens[s] - 1 (this step's tokens count, they are written before), position p in block
    block_table[s, p // block_size]. Its n queries are the last n of these positions. A query sees keys up to its own
    position if `causal`, and only those closer than `window`. Block table entries that no query sees may be anything.

    Logits are scale * q.k, then softcap * tanh(logits / softcap), then plus `bias` [tokens, heads, keys]. `sinks`
    [heads] adds one logit without a value to each row's denominator. Query head h reads key head
    h // (heads / cache heads). Keys and values of a cache of scheme int8 are codes times scales in float32. Results are
    [tokens, heads, v_dim] and float32 [tokens, heads] (sinks included); a row that sees no key, or lies at or beyond
    query_start[seqs], gives 0 and -inf. Softmax by its maximum, accumulated in at least float32; the exponentials may
    be rounded before they meet the values.
    """

    def one(s: int, begin: int, end: int) -> Any:
        length = int(seq_lens[s])
        # keys that no query can see are not read: their blocks may be freed
        first = max(0, length - (end - begin) - window + 1) if window else 0
        keys = np.arange(first, max(length, first))
        at = (np.asarray(block_table[s])[keys // cache.k.shape[1]], keys % cache.k.shape[1])
        positions = np.arange(length - (end - begin), length)
        k, v = values(type(cache)(*(part[at] for part in cache)))
        return attend(
            q[begin:end], k, v, positions, keys, sinks, None if bias is None else bias[begin:end],
            scale=scale, window=window, softcap=softcap, causal=causal,
        )  # fmt: skip

    return each_sequence(q.shape[0], (q.shape[1], cache.v.shape[-1]), query_start, one)


def each_sequence(tokens: int, row: tuple[int, int], query_start: Any, one: Callable[[int, int, int], Any]) -> Any:
    """Outputs [tokens, *row] and log-sum-exps of sequences, `one(sequence, begin, end)` each; 0 and -inf behind."""
    outputs, sums, done = [], [], 0
    for s in range(query_start.shape[0] - 1):
        begin, end = int(query_start[s]), int(query_start[s + 1])
        if begin < end:
            out, lse = one(s, begin, end)
            outputs.append(out)
            sums.append(lse)
            done = end
    if done < tokens or not outputs:
        outputs.append(np.zeros((tokens - done, *row)))
        sums.append(np.full((tokens - done, row[0]), -np.inf))
    if len(outputs) == 1:
        return outputs[0], sums[0]
    return np.concatenate(outputs, axis=0), np.concatenate(sums, axis=0)


def attend(
    q: Any,
    k: Any,
    v: Any,
    positions: Any,
    keys: Any,
    sinks: Any,
    bias: Any,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    causal: bool,
) -> Any:
    """One sequence: q [n, heads, k_dim] at `positions` [n] over k and v at `keys`; [n, heads, v_dim] and [n, heads]."""
    n, heads, group = q.shape[0], q.shape[1], q.shape[1] // k.shape[1]
    if keys.size == 0:
        return np.zeros((n, heads, v.shape[-1])), np.full((n, heads), -np.inf)
    visible = (keys <= positions[:, None]) if causal else np.ones((n, keys.size), bool)
    if window:
        visible = visible & (positions[:, None] - keys < window)
    visible = visible & (positions >= 0)[:, None]
    k, v = (np.repeat(np.transpose(x, (1, 0, 2)), group, axis=0) for x in (k, v))
    logits = np.matmul(np.transpose(q, (1, 0, 2)), np.swapaxes(k, -1, -2)) * scale
    if softcap:
        logits = np.tanh(logits / softcap) * softcap
    if bias is not None:
        logits = logits + np.transpose(bias[..., keys], (1, 0, 2))
    logits = np.where(visible, logits, -np.inf)
    top = np.maximum(np.max(logits, axis=-1, keepdims=True), -1e30)
    sink = None if sinks is None else np.reshape(sinks, (heads, 1, 1))
    if sink is not None:
        top = np.maximum(top, sink)
    top = numeric.shift(top)
    p = np.exp(logits - top)
    total = np.sum(p, axis=-1, keepdims=True)
    # a running maximum scales them differently from block to block
    kept = numeric.point(p, "probs", known=False)
    if sink is not None:
        total = total + np.exp(sink - top)
    seen = np.any(visible, axis=-1)[:, None]
    safe = np.where(seen, total, 1.0)
    out = np.where(seen, np.matmul(kept, v) / safe, 0.0)
    lse = np.where(seen, top + np.log(safe), -np.inf)
    return np.transpose(out, (1, 0, 2)), np.transpose(lse[..., 0], (1, 0))


@paged_attention.infer
def _(
    q: TensorType,
    cache: StateType,
    query_start: TensorType,
    seq_lens: TensorType,
    block_table: TensorType,
    sinks: TensorType | None,
    bias: TensorType | None,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    causal: bool,
) -> tuple[TensorType, TensorType]:
    _paged_kv(cache)
    require(q.rank == 3 and q.shape[2] == cache["k_dim"], f"q must be [tokens, heads, {cache['k_dim']}], not {q}")
    heads = q.shape[1]
    require(
        isinstance(heads, int) and heads % cache["heads"] == 0, f"{heads} heads do not share {cache['heads']} key heads"
    )
    for name, x, rank in (("query_start", query_start, 1), ("seq_lens", seq_lens, 1), ("block_table", block_table, 2)):
        integer(x, name, rank)
    require_equal(query_start.shape[0], seq_lens.shape[0] + 1, "query_start must have one more element than seq_lens")
    require_equal(block_table.shape[0], seq_lens.shape[0], "block_table must have one row per sequence")
    require(sinks is None or sinks.shape == (heads,), f"sinks must be [{heads}], not {sinks}")
    require(
        bias is None or (bias.rank == 3 and bias.shape[1] == heads), f"bias must be [tokens, {heads}, keys], not {bias}"
    )
    if bias is not None:
        require_equal(bias.shape[0], q.shape[0], "bias and q have different numbers of tokens")
    require(window is None or window > 0, f"window must be positive, is {window}")
    return TensorType(q.dtype, (q.shape[0], heads, cache["v_dim"])), TensorType(float32, (q.shape[0], heads))
