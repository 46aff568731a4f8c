"""Multi-head latent attention in absorbed form: one cached latent and one rotary key per token, shared by all heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.dim import require_equal
from ..ir.dtype import float32
from ..ir.op import State, Tensor, Tolerance, op, require
from ..ir.types import StateType, TensorType
from .attention import attend, each_sequence, scatter_slots
from .elementwise import in_dtype, narrowed
from .movement import concat, integer, reshape
from .states import LatentPages
from .varlen import common_float, gather_slots, gathered, places, sdpa_varlen


def _latent(cache: StateType) -> None:
    require(cache.kind == "paged_latent", f"the cache must be paged_latent, not {cache}")


@op(tolerance=Tolerance.EXACT)
def write_latent_cache(cache: State, latent: Tensor, rope: Tensor, slots: Tensor) -> State:
    """Store one latent and one rotary key per token: slot = block * block_size + offset; slot -1 writes nothing.

    latent is [tokens, dim], rope [tokens, rope_dim], slots [tokens] integers. Values are rounded once to the dtype of
    the cache. Which of two tokens that name one slot stays is not defined; here it is the later one.
    """
    if latent.shape[0] == 0:
        return cache
    return LatentPages(scatter_slots(cache.latent, latent, slots), scatter_slots(cache.rope, rope, slots))


@write_latent_cache.infer
def _(cache: StateType, latent: TensorType, rope: TensorType, slots: TensorType) -> StateType:
    _latent(cache)
    integer(slots, "slots", 1)
    for name, x, width in (("latent", latent, cache["dim"]), ("rope", rope, cache["rope_dim"])):
        require(x.dtype.is_float and x.shape[1:] == (width,), f"{name} is {x}, the cache holds [{width}]")
        require_equal(x.shape[0], slots.shape[0], f"{name} and slots have different numbers of tokens")
    return cache


@op(tolerance=Tolerance.ATTENTION)
def mla_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: State,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    *,
    scale: float,
    causal: bool = True,
) -> Tensor:
    """Attention over cached latents: the output, and the log-sum-exp of its logits.

    The absorbed form of DeepSeek-AI 2024, "DeepSeek-V2", section 2.1: q_latent [tokens, heads, dim] and q_rope
    [tokens, heads, rope_dim] meet keys that are the latent and the rotary key of a position side by side, and values
    that are its latent, both the same for all heads. The results are [tokens, heads, dim], still in the latent space,
    and float32 [tokens, heads]. `scale` is that of the heads before absorption. Sequences, positions and rows without
    keys are as in `paged_attention`.
    """
    q = np.concatenate([q_latent, q_rope], axis=-1)
    size = cache.latent.shape[1]

    def one(s: int, begin: int, end: int) -> Any:
        length = int(seq_lens[s])
        keys, positions = np.arange(length), np.arange(length - (end - begin), length)
        at = (np.asarray(block_table[s])[keys // size], keys % size)
        latent = cache.latent[at]
        k = np.expand_dims(np.concatenate([latent, cache.rope[at]], axis=-1), 1)
        return attend(
            q[begin:end], k, np.expand_dims(latent, 1), positions, keys, None, None,
            scale=scale, window=None, softcap=None, causal=causal,
        )  # fmt: skip

    return each_sequence(q.shape[0], (q.shape[1], q_latent.shape[-1]), query_start, one)


@mla_attention.infer
def _(
    q_latent: TensorType,
    q_rope: TensorType,
    cache: StateType,
    query_start: TensorType,
    seq_lens: TensorType,
    block_table: TensorType,
    *,
    scale: float,
    causal: bool,
) -> tuple[TensorType, TensorType]:
    _latent(cache)
    for name, x, width in (("q_latent", q_latent, cache["dim"]), ("q_rope", q_rope, cache["rope_dim"])):
        require(x.rank == 3 and x.shape[2] == width, f"{name} must be [tokens, heads, {width}], not {x}")
    require(q_latent.dtype == q_rope.dtype, f"q_latent {q_latent} and q_rope {q_rope} differ in dtype")
    require_equal(q_latent.shape[0], q_rope.shape[0], "q_latent and q_rope have different numbers of tokens")
    require_equal(q_latent.shape[1], q_rope.shape[1], "q_latent and q_rope have different numbers of heads")
    require(q_latent.dtype.is_float, f"q_latent must be float, not {q_latent}")
    for name, x, rank in (("query_start", query_start, 1), ("seq_lens", seq_lens, 1), ("block_table", block_table, 2)):
        integer(x, name, rank)
    require_equal(query_start.shape[0], seq_lens.shape[0] + 1, "query_start must have one more element than seq_lens")
    require_equal(block_table.shape[0], seq_lens.shape[0], "block_table must have one row per sequence")
    return q_latent, TensorType(float32, q_latent.shape[:2])


@op(tolerance=Tolerance.EXACT)
def gather_latent_cache(cache: State, seq_lens: Tensor, block_table: Tensor) -> Tensor:
    """The cached latents and rotary keys of sequences one after the other, and where each sequence starts.

    The results are [keys, dim], [keys, rope_dim] and int32 [seqs + 1]; all else is as in `gather_kv_cache`.
    """
    starts, place = places(cache.latent.shape[:2], seq_lens, block_table)
    return gather_slots(cache.latent, place), gather_slots(cache.rope, place), starts


@gather_latent_cache.infer
def _(cache: StateType, seq_lens: TensorType, block_table: TensorType) -> tuple[TensorType, TensorType, TensorType]:
    _latent(cache)
    keys, kind, starts = gathered(cache, seq_lens, block_table)
    latent, rope = (TensorType(kind, (keys, cache[width])) for width in ("dim", "rope_dim"))
    return latent, rope, starts


@mla_attention.decompose
def _(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: State,
    query_start: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    *,
    scale: float,
    causal: bool,
) -> Tensor:
    latent, rope, key_start = gather_latent_cache(cache, seq_lens, block_table)
    q, k = concat(q_latent, q_rope, axis=2), concat(latent, rope, axis=1)
    k, v = (reshape(x, shape=(x.shape[0], 1, x.shape[1])) for x in (k, latent))
    kind = common_float(q, k)
    out, lse = sdpa_varlen(
        in_dtype(q, kind), in_dtype(k, kind), in_dtype(v, kind), query_start, key_start, scale=scale, causal=causal
    )
    return narrowed(out, q_latent), lse
