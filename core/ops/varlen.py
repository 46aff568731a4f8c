"""Attention of sequences side by side, and the moves between caches and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.dim import Dim, require_equal, sym
from ..ir.dtype import DType, float32, float64, int32
from ..ir.op import State, Tensor, Tolerance, op, require
from ..ir.types import StateType, TensorType
from .attention import attend, each_sequence, paged_attention, values
from .contraction import matmul
from .elementwise import (
    add,
    cast,
    div,
    eq,
    exp,
    in_dtype,
    le,
    log,
    logical_and,
    lt,
    maximum,
    minimum,
    mul,
    narrowed,
    sub,
    tanh,
    where,
    widened,
)
from .movement import arange, concat, expand, full, gather, index_select, integer, permute, reshape, slice
from .reduction import amax, sum


@op(tolerance=Tolerance.ATTENTION)
def sdpa_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start: Tensor,
    key_start: Tensor,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    causal: bool = True,
) -> Tensor:
    """Attention of sequences that lie one after the other: the output, and the log-sum-exp of its logits.

    q is [tokens, heads, k_dim], k [keys, kv heads, k_dim], v [keys, kv heads, v_dim]; rows query_start[s] to
    query_start[s + 1] of q and key_start[s] to key_start[s + 1] of k and v belong to sequence s, both int32 [seqs + 1]
    ascending from 0 (running sums, not lengths). The n queries of a sequence stand at the last n positions of its keys.
    Everything else, including rows that see no key and rows beyond the last sequence, is as in `paged_attention`;
    `bias` is [tokens, heads, longest sequence] and added to the logits, so that -inf masks a key.
    """

    def one(s: int, begin: int, end: int) -> Any:
        first, last = int(key_start[s]), int(key_start[s + 1])
        positions, keys = np.arange(last - first - (end - begin), last - first), np.arange(last - first)
        return attend(
            q[begin:end], k[first:last], v[first:last], positions, keys, sinks,
            None if bias is None else bias[begin:end],
            scale=scale, window=window, softcap=softcap, causal=causal,
        )  # fmt: skip

    return each_sequence(q.shape[0], (q.shape[1], v.shape[-1]), query_start, one)


@sdpa_varlen.infer
def _(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    query_start: TensorType,
    key_start: TensorType,
    sinks: TensorType | None,
    bias: TensorType | None,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    causal: bool,
) -> tuple[TensorType, TensorType]:
    require(q.rank == 3 and k.rank == 3 and v.rank == 3, f"q, k and v must have three axes, not {q}, {k}, {v}")
    require(q.dtype == k.dtype == v.dtype and q.dtype.is_float, f"q, k and v differ in dtype: {q}, {k}, {v}")
    heads, kv_heads = q.shape[1], k.shape[1]
    require(
        isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads == 0,
        f"{heads} heads do not share {kv_heads} key heads",
    )
    require_equal(q.shape[2], k.shape[2], f"q {q} and k {k} have heads of different width")
    require_equal(v.shape[1], kv_heads, f"k {k} and v {v} have different numbers of heads")
    require_equal(k.shape[0], v.shape[0], f"k {k} and v {v} have different numbers of keys")
    integer(query_start, "query_start", 1)
    integer(key_start, "key_start", 1)
    require_equal(query_start.shape[0], key_start.shape[0], "query_start and key_start differ in length")
    require(sinks is None or sinks.shape == (heads,), f"sinks must be [{heads}], not {sinks}")
    require(bias is None or (bias.rank == 3 and bias.shape[1] == heads), f"bias must be [tokens, {heads}, keys]")
    if bias is not None:
        require_equal(bias.shape[0], q.shape[0], "bias and q have different numbers of tokens")
    require(window is None or window > 0, f"window must be positive, is {window}")
    return TensorType(q.dtype, (q.shape[0], heads, v.shape[2])), TensorType(float32, (q.shape[0], heads))


@sdpa_varlen.decompose
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_start: Tensor,
    key_start: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    causal: bool,
) -> Tensor:
    tokens, heads, keys, group = q.shape[0], q.shape[1], k.shape[0] + 1, q.shape[1] // k.shape[1]
    wide = widened(q)
    visible, there = _visible(q, query_start, key_start, keys, window, causal)
    logits = mul(matmul(permute(wide, axes=(1, 0, 2)), permute(_spread(k, None, group), axes=(0, 2, 1))), scale)
    if softcap is not None:
        logits = mul(tanh(div(logits, softcap)), softcap)
    if bias is not None:
        logits = add(logits, permute(_bias_at(narrowed(bias, wide), there, keys), axes=(1, 0, 2)))
    logits = where(reshape(visible, shape=(1, tokens, keys)), logits, -np.inf)
    sink = None if sinks is None else reshape(narrowed(sinks, wide), shape=(heads, 1, 1))
    top = maximum(amax(logits, axis=2, keepdims=True), -1e30)
    top = top if sink is None else maximum(top, sink)
    p = exp(sub(logits, top))
    total = sum(p, axis=2, keepdims=True)
    total = total if sink is None else add(total, exp(sub(sink, top)))
    seen = reshape(lt(0, sum(cast(visible, dtype=int32), axis=1)), shape=(1, tokens, 1))
    read = lt(0, sum(cast(visible, dtype=int32), axis=0))
    safe = where(seen, total, 1.0)
    out = where(seen, div(matmul(p, _spread(v, read, group)), safe), 0.0)
    lse = permute(reshape(where(seen, add(top, log(safe)), -np.inf), shape=(heads, tokens)), axes=(1, 0))
    return narrowed(permute(out, axes=(1, 0, 2)), q), in_dtype(lse, float32)


def _visible(
    q: Tensor, query_start: Tensor, key_start: Tensor, keys: Dim, window: int | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """Which query sees which key, bool [tokens, keys], and the position of each key in its sequence, int32 [keys].

    The last key is one more than there are, which none sees, so that there is a largest logit in any case.
    """
    tokens, seqs = q.shape[0], query_start.shape[0] - 1
    row, column = (tokens, 1), (1, keys)
    of_query, of_key = _sequence_of(query_start, tokens), _sequence_of(key_start, keys)
    key_position = sub(_range(q, keys), _border(key_start, 0, of_key))
    length = sub(_border(key_start, 1, of_query), _border(key_start, 0, of_query))
    position = add(length, sub(_range(q, tokens), _border(query_start, 1, of_query)))
    there, here = reshape(key_position, shape=column), reshape(position, shape=row)
    visible = logical_and(eq(reshape(of_query, shape=row), reshape(of_key, shape=column)), le(0, here))
    visible = logical_and(visible, lt(reshape(of_query, shape=row), _size(q, seqs)))
    if causal:
        visible = logical_and(visible, le(there, here))
    if window is not None:
        visible = logical_and(visible, lt(sub(here, there), window))
    return visible, key_position


def _sequence_of(start: Tensor, rows: Dim) -> Tensor:
    """The sequence that each of `rows` rows belongs to, int32 [rows]; seqs for rows beyond the last."""
    seqs = start.shape[0] - 1
    ends = reshape(slice(in_dtype(start, int32), axis=0, start=1, stop=seqs + 1), shape=(1, seqs))
    return sum(cast(le(ends, reshape(_range(start, rows), shape=(rows, 1))), dtype=int32), axis=1)


def _border(start: Tensor, side: int, owner: Tensor) -> Tensor:
    """Where the sequence of each row begins (side 0) or ends (1), int32 like `owner`; beyond the last, its end."""
    seqs = start.shape[0] - 1
    table = in_dtype(start, int32)
    last = slice(table, axis=0, start=seqs, stop=seqs + 1)
    return index_select(concat(slice(table, axis=0, start=side, stop=seqs + side), last, axis=0), owner)


def _spread(x: Tensor, read: Tensor | None, group: Any) -> Tensor:
    """k or v [keys, kv heads, width] as wide [heads, keys + 1, width]; zeros last, and where `read` denies them."""
    keys, heads, width = x.shape
    wide = widened(x)
    zeros = x.builder.call(full, (), {"shape": (1, heads, width), "value": 0.0, "dtype": wide.dtype})
    wide = concat(wide, zeros, axis=0)
    if read is not None:
        wide = where(reshape(read, shape=(keys + 1, 1, 1)), wide, 0.0)
    wide = expand(reshape(wide, shape=(keys + 1, heads, 1, width)), shape=(keys + 1, heads, group, width))
    return permute(reshape(wide, shape=(keys + 1, heads * group, width)), axes=(1, 0, 2))


def _bias_at(bias: Tensor, there: Tensor, keys: Dim) -> Tensor:
    """The bias [tokens, heads, longest] at the positions of all keys, [tokens, heads, keys]."""
    tokens, heads, longest = bias.shape
    nothing = bias.builder.call(full, (), {"shape": (tokens, heads, 1), "value": 0.0, "dtype": bias.dtype})
    at = reshape(minimum(there, _size(bias, longest)), shape=(1, 1, keys))
    return gather(concat(bias, nothing, axis=2), expand(at, shape=(tokens, heads, keys)), axis=2)


def _range(like: Tensor, size: Dim) -> Tensor:
    return like.builder.call(arange, (), {"size": size, "dtype": int32})


def _size(like: Tensor, size: Dim) -> Tensor:
    """A size as an int32 scalar."""
    return like.builder.call(full, (), {"shape": (), "value": size, "dtype": int32})


@op(tolerance=Tolerance.EXACT)
def gather_kv_cache(cache: State, seq_lens: Tensor, block_table: Tensor) -> Tensor:
    """The cached keys and values of sequences one after the other, and where each sequence starts.

    seq_lens int32 [seqs] and block_table int32 [seqs, blocks] are as in `paged_attention`. The results are
    [keys, heads, k_dim], [keys, heads, v_dim] and int32 [seqs + 1] ascending from 0, where keys is the sum of seq_lens:
    a size that only the run tells. Where the table names no block of the cache, as for freed ones, zeros are read. Of a
    cache of scheme int8 they are codes times scales in float32, else they have its dtype.
    """
    starts, place = places(cache.k.shape[:2], seq_lens, block_table)
    return *values(type(cache)(*(gather_slots(part, place) for part in cache))), starts


def places(pages: tuple[int, ...], seq_lens: Any, block_table: Any) -> tuple[Any, Any]:
    """Where each sequence starts, and the slot of each position of each sequence, -1 where there is none."""
    lengths, table = np.asarray(seq_lens), np.asarray(block_table)
    starts = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths).astype(np.int32)])
    owner = np.repeat(np.arange(lengths.size), lengths)
    position = np.arange(owner.size) - starts[owner]
    block = table[owner, position // pages[1]]
    return starts, np.where((block >= 0) & (block < pages[0]), block * pages[1] + position % pages[1], -1)


def gather_slots(pages: Any, slots: Any) -> Any:
    """Rows of pages [blocks, block_size, ...] by slot; zeros for -1."""
    flat = np.reshape(pages, (-1, *pages.shape[2:]))
    there = np.reshape(slots >= 0, (-1,) + (1,) * (len(flat.shape) - 1))
    return np.where(there, np.take(flat, np.maximum(slots, 0), axis=0), 0.0)


def gathered(cache: StateType, seq_lens: TensorType, block_table: TensorType) -> tuple[Dim, DType, TensorType]:
    """How many rows a gathering makes, in which dtype, and the type of their starts."""
    integer(seq_lens, "seq_lens", 1)
    integer(block_table, "block_table", 2)
    require_equal(block_table.shape[0], seq_lens.shape[0], "block_table must have one row per sequence")
    keys = sym("gathered", unbacked=True)
    kind = float32 if cache.quantized else cache.parts[0].dtype
    return keys, kind, TensorType(int32, (seq_lens.shape[0] + 1,))


@gather_kv_cache.infer
def _(cache: StateType, seq_lens: TensorType, block_table: TensorType) -> tuple[TensorType, TensorType, TensorType]:
    require(cache.kind == "paged_kv", f"the cache must be paged_kv, not {cache}")
    keys, kind, starts = gathered(cache, seq_lens, block_table)
    k, v = (TensorType(kind, (keys, cache["heads"], cache[width])) for width in ("k_dim", "v_dim"))
    return k, v, starts


def common_float(q: Tensor, k: Tensor) -> DType:
    """The dtype that queries and gathered keys of two dtypes are attended in."""
    return q.dtype if q.dtype == k.dtype else float64 if float64 in (q.dtype, k.dtype) else float32


@paged_attention.decompose
def _(
    q: Tensor,
    cache: State,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    causal: bool,
) -> Tensor:
    k, v, key_start = gather_kv_cache(cache, seq_lens, block_table)
    kind = common_float(q, k)
    out, lse = sdpa_varlen(
        in_dtype(q, kind), in_dtype(k, kind), in_dtype(v, kind), query_start, key_start, sinks, bias,
        scale=scale, window=window, softcap=softcap, causal=causal,
    )  # fmt: skip
    return narrowed(out, q), lse


@op(tolerance=Tolerance.EXACT)
def copy_blocks(cache: State, pairs: Tensor) -> State:
    """Copy whole blocks inside a paged cache: pairs int32 [copies, 2] name source and target; no block is both."""
    moves = np.asarray(pairs)
    source = np.arange(cache[0].shape[0])
    source[moves[:, 1]] = moves[:, 0]
    return type(cache)(*(np.take(pages, source, axis=0) for pages in cache))


@copy_blocks.infer
def _(cache: StateType, pairs: TensorType) -> StateType:
    require(cache.kind in ("paged_kv", "paged_latent"), f"the cache must be paged, not {cache}")
    integer(pairs, "pairs", 2)
    require(pairs.shape[1] == 2, f"pairs must be [copies, 2], not {pairs}")
    return cache
