"""Attention: over paged caches, for prompts and single tokens alike, over keys side by side, and over latents.

A program has a tile of queries of one sequence that share a key head, and goes through the keys they see. Where that
leaves most of a card idle, each run of `CHUNK` keys has a program, and a second kernel adds up what they found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry

from ..._torch.handles import TorchPagedKV, TorchPagedLatent
from ..launch import launch, power, tiles
from .registry import FLOATS, TRITON_KERNELS, readable
from .scalar import device, max_of, product, sum_of, tanh, widen
from .softmax import exponential, keys_of, merged, sequence_of, span_of, store_finished, weighted

Tensor = torch.Tensor

CHUNK = 512
"""Keys whose sums are made by themselves."""
BUSY = 256
"""Programs that keep a card busy: with fewer, chunks have programs of their own."""
WORKSPACE = 1 << 24
"""Sums of chunks, in elements, that are worth their memory."""


@device
def as_read(x, WIDE: tl.constexpr):
    """A factor of a product, as float32 where the products are."""
    if WIDE:
        x = widen(x)
    return x


@device
def visible_at(key, read, position, used, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Which keys, of those that are read at all, a query sees."""
    seen = (used & (position >= 0))[:, None] & read[None, :]
    if CAUSAL:
        seen = seen & (key[None, :] <= position[:, None])
    if WINDOW:
        seen = seen & (position[:, None] - key[None, :] < window)
    return seen


@device
def chunk_of(
    query, turned, k, k_rope, v, k_scale, v_scale, table, bias, line, used, position, from_key, to_key, start, stop,
    first_key, k_dim, rope_dim, v_dim, size, scale, window, softcap, k_block, k_place, v_block, v_place, r_block,
    r_place, s_block, s_place, s_head,
    PAGED: tl.constexpr, LATENT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    WIDE: tl.constexpr, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Largest logits, sums of exponentials and weighted values over keys of a chunk; k and v are those of a head."""
    d, r, w = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_V)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.full((BLOCK_M,), 0, tl.float32)
    made = tl.full((BLOCK_M, BLOCK_V), 0, tl.float32)
    for tile_start in range(from_key, to_key, BLOCK_N):
        key = tile_start + tl.arange(0, BLOCK_N)
        read = (key >= start) & (key < stop)
        if PAGED:
            block = tl.load(table + key // size, read, 0).to(tl.int64)
            at_k, at_v = block * k_block + key % size * k_place, block * v_block + key % size * v_place
        else:
            at_k, at_v = (first_key + key) * k_place, (first_key + key) * v_place
        keyed = as_read(tl.load(k + at_k[:, None] + d[None, :], read[:, None] & (d < k_dim)[None, :], 0.0), WIDE)
        logits = product(query, tl.trans(keyed), tl.full((BLOCK_M, BLOCK_N), 0, tl.float32))
        if LATENT:
            at_r = block * r_block + key % size * r_place
            rope = tl.load(k_rope + at_r[:, None] + r[None, :], read[:, None] & (r < rope_dim)[None, :], 0.0)
            logits = product(turned, tl.trans(as_read(rope, WIDE)), logits)
            value = keyed
        else:
            value = as_read(tl.load(v + at_v[:, None] + w[None, :], read[:, None] & (w < v_dim)[None, :], 0.0), WIDE)
        if k_scale is not None:
            at_s = block * s_block + key % size * s_place + s_head
            logits *= tl.load(k_scale + at_s, read, 0.0)[None, :]
        logits *= scale
        if SOFTCAP:
            logits = tanh(tl.div_rn(logits, softcap)) * softcap
        visible = visible_at(key, read, position, used, window, CAUSAL, WINDOW)
        if bias is not None:
            logits += widen(tl.load(bias + line[:, None] + key[None, :], visible, 0.0))
        logits = tl.where(visible, logits, float("-inf"))
        highest = tl.maximum(top, max_of(logits, 1))
        kept, p = exponential(top, highest), exponential(logits, highest[:, None])
        total = total * kept + sum_of(p, 1)
        if v_scale is not None:
            p *= tl.load(v_scale + at_s, read, 0.0)[None, :]
        made = weighted(p, value, made * kept[:, None], PARTS)
        top = highest
    return top, total, made


@triton.jit(do_not_specialize=["tokens", "seqs", "table_step", "bias_keys", "window"])
def attention_kernel(
    q, q_rope, k, k_rope, v, k_scale, v_scale, out, lse, tops, totals, sums, starts, lengths, key_starts, table,
    sinks, bias, tokens, seqs, heads, k_dim, rope_dim, v_dim, size, table_step, bias_keys, scale, window, softcap,
    k_block, k_place, k_head, v_block, v_place, v_head, r_block, r_place, s_block, s_place, s_head,
    GROUP: tl.constexpr, PAGED: tl.constexpr, LATENT: tl.constexpr, SPLIT: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, WIDE: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """A tile of queries over the keys of their sequence, or over one chunk of them where `SPLIT`.

    q is [tokens, heads, k_dim]; keys lie in pages if `PAGED`, else at key_starts. `LATENT` keys are values too, and are
    continued by k_rope for the logits. With scales, keys and values are codes.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    s = sequence_of(starts, seqs, tile, BLOCK_Q)
    begin = tl.load(starts + s).to(tl.int32)
    end = tl.load(starts + s + 1, s < seqs, tokens).to(tl.int32)
    first = (tile - begin // BLOCK_Q - s) * BLOCK_Q
    if begin + first < end:
        length, first_key = keys_of(lengths, key_starts, s, seqs, PAGED)
        row = tl.arange(0, BLOCK_M)
        offset, head = first + row // GROUP, kv_head * GROUP + row % GROUP
        used = (row // GROUP < BLOCK_Q) & (begin + offset < end)
        line, position = (begin + offset).to(tl.int64) * heads + head, length - (end - begin) + offset
        start, stop = span_of(length, length - (end - begin) + first, window, CAUSAL, WINDOW, BLOCK_Q)
        d, w = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
        query = tl.load(q + line[:, None] * k_dim + d[None, :], used[:, None] & (d < k_dim)[None, :], 0.0)
        turned = query
        if LATENT:
            r = tl.arange(0, BLOCK_R)
            turned = tl.load(
                q_rope + line[:, None] * rope_dim + r[None, :], used[:, None] & (r < rope_dim)[None, :], 0.0
            )
        top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total, made = tl.full((BLOCK_M,), 0, tl.float32), tl.full((BLOCK_M, BLOCK_V), 0, tl.float32)
        chunk = tl.program_id(2) if SPLIT else start // CHUNK
        last = chunk + 1 if SPLIT else (stop + CHUNK - 1) // CHUNK
        while chunk < last:
            found = chunk_of(
                as_read(query, WIDE), as_read(turned, WIDE), k + kv_head * k_head, k_rope, v + kv_head * v_head,
                k_scale, v_scale, table + s * table_step if PAGED else table, bias, line * bias_keys, used, position,
                tl.maximum(chunk * CHUNK, start // BLOCK_N * BLOCK_N), tl.minimum(chunk * CHUNK + CHUNK, stop), start,
                stop, first_key, k_dim, rope_dim, v_dim, size, scale, window, softcap, k_block, k_place, v_block,
                v_place, r_block, r_place, s_block, s_place, kv_head * s_head, PAGED, LATENT, CAUSAL, WINDOW, SOFTCAP,
                WIDE, PARTS, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_R, BLOCK_V,
            )  # fmt: skip
            top, total, made = merged(top, total, made, found[0], found[1], found[2])
            chunk += 1
        if SPLIT:
            at = line * tl.num_programs(2) + tl.program_id(2)
            tl.store(tops + at, top, used)
            tl.store(totals + at, total, used)
            there = (used & (total != 0.0))[:, None] & (w < v_dim)[None, :]
            tl.store(sums + at[:, None] * v_dim + w[None, :], made, there)
        else:
            store_finished(out, lse, top, total, made, sinks, head, line, used, v_dim, w)


@triton.jit(do_not_specialize=["lines", "chunks"])
def combine_kernel(
    tops, totals, sums, out, lse, sinks, lines, heads, v_dim, chunks, ROWS: tl.constexpr, BLOCK_V: tl.constexpr
):
    """What the programs of all chunks found, added up in the order of the chunks."""
    line = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    used, w = line < lines, tl.arange(0, BLOCK_V)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.full((ROWS,), 0, tl.float32)
    made = tl.full((ROWS, BLOCK_V), 0, tl.float32)
    for chunk in range(chunks):
        at = line * chunks + chunk
        chunk_top = tl.load(tops + at, used, float("-inf"))
        chunk_total = tl.load(totals + at, used, 0.0)
        there = (chunk_total != 0.0)[:, None] & (w < v_dim)[None, :]
        chunk_made = tl.load(sums + at[:, None] * v_dim + w[None, :], there, 0.0)
        top, total, made = merged(top, total, made, chunk_top, chunk_total, chunk_made)
    store_finished(out, lse, top, total, made, sinks, (line % heads).to(tl.int32), line, used, v_dim, w)


@dataclass(frozen=True)
class Keys:
    """Where keys and values are: pages [blocks, size, heads, width] with a table, or rows [keys, heads, width]."""

    k: Tensor
    v: Tensor
    lengths: Tensor | None = None
    table: Tensor | None = None
    starts: Tensor | None = None
    rope: Tensor | None = None
    scales: tuple[Tensor, ...] = ()

    @property
    def paged(self) -> bool:
        return self.table is not None

    @property
    def chunks(self) -> int:
        """How many chunks the longest sequence can have."""
        return tiles(self.table.shape[1] * self.k.shape[1], CHUNK) if self.table is not None else 1

    @property
    def steps(self) -> tuple[int, ...]:
        """Strides by block, place and head of keys, values and scales; of rotary keys by block and place only."""
        for pages in (self.k, self.v):
            if pages.numel() and pages.stride(-1) != 1:
                raise ValueError("keys and values must keep the elements of a head side by side")
        lead = [x.stride()[:3] if self.paged else (0, *x.stride()[:2]) for x in (self.k, self.v)]
        if self.scales and self.scales[0].stride() != self.scales[1].stride():
            raise ValueError("the scales of keys and of values must lie alike")
        rope = (0, 0) if self.rope is None else self.rope.stride()[:2]
        return *lead[0], *lead[1], *rope, *(self.scales[0].stride() if self.scales else (0, 0, 0))


def _tile(wide: bool, width: int, group: int) -> dict[str, int]:
    """Queries and keys that a program holds, and its warps: the same for any number of either."""
    if width <= 32:
        queries, keys = 64, 64
    elif width <= 128:
        queries, keys = 64 if width <= 64 and not wide else 32, 32
    else:
        queries, keys = 16, 16 if wide and width > 256 else 32
    stages = 1 if wide or width > 128 else 2
    return {"BLOCK_M": power(group, queries), "BLOCK_N": keys, "warps": 8 if width > 256 else 4, "stages": stages}


def attend(
    q: Tensor,
    keys: Keys,
    query_start: Tensor,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    causal: bool = True,
    q_rope: Tensor | None = None,
    exact: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attention of q [tokens, heads, k_dim]: outputs like q and log-sum-exps float32 [tokens, heads].

    `exact` keeps all bits of exponentials where they meet values of bfloat16, and so long sums have closer bounds.

    Raises:
        ValueError: the elements of a head are not side by side in the cache, or its scales lie apart.
    """
    (tokens, heads, k_dim), v_dim, latent = q.shape, keys.v.shape[-1], q_rope is not None
    out = torch.empty((tokens, heads, v_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=q.device)
    if not tokens:
        return out, lse
    kv_heads = keys.k.shape[-2]
    group, seqs = heads // kv_heads, query_start.numel() - 1
    wide = q.dtype is torch.float32 or keys.k.dtype is not q.dtype
    tile = _tile(wide, max(k_dim, v_dim), group)
    lines = tokens // (tile["BLOCK_M"] // group) + seqs + 1
    chunks = keys.chunks
    split = chunks > 1 and lines * kv_heads < BUSY and tokens * heads * chunks * v_dim <= WORKSPACE
    tops, totals, sums = _workspace(q, tokens * heads * chunks, v_dim) if split else (None, None, None)
    rope, parts = (
        0 if q_rope is None else q_rope.shape[-1],
        3 if exact and q.dtype is torch.bfloat16 and not wide else 1,
    )
    launch(
        attention_kernel, (lines, kv_heads, chunks if split else 1), q.contiguous(),
        None if q_rope is None else q_rope.contiguous(), keys.k, keys.rope, keys.v, *(keys.scales or (None, None)),
        out, lse, tops, totals, sums, query_start.contiguous(), keys.lengths, keys.starts, keys.table, sinks,
        None if bias is None else bias.contiguous(), tokens, seqs, heads, k_dim, rope, v_dim, keys.k.shape[1],
        0 if keys.table is None else keys.table.stride(0), 0 if bias is None else bias.shape[-1], scale, window or 0,
        softcap or 0.0, *keys.steps, GROUP=group, PAGED=keys.paged, LATENT=latent, SPLIT=split, CAUSAL=causal,
        WINDOW=bool(window), SOFTCAP=bool(softcap), WIDE=wide, PARTS=parts, CHUNK=CHUNK, BLOCK_D=power(k_dim, 16),
        BLOCK_R=power(rope, 16), BLOCK_V=power(v_dim, 16), **tile,
    )  # fmt: skip
    if split:
        block = power(v_dim, 16)
        rows = max(1, 512 // block)
        launch(
            combine_kernel, (tiles(tokens * heads, rows),), tops, totals, sums, out, lse, sinks, tokens * heads, heads,
            v_dim, chunks, ROWS=rows, BLOCK_V=block,
        )  # fmt: skip
    return out, lse


def _workspace(q: Tensor, count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the largest logit, the sum and the weighted values of each row and chunk."""

    def room(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=q.device)

    return room(count), room(count), room(count, width)


def _contiguous(*given: Tensor | None) -> tuple[Any, ...]:
    return tuple(None if x is None else x.contiguous() for x in given)


def register_attention(registry: KernelRegistry, suffix: str, exact: bool, priority: int = 0) -> None:
    """Enter the kernels of all ops of attention, which keep all bits of exponentials or not."""

    @registry.register(
        ops.paged_attention, name=f"triton_paged_attention{suffix}", dtypes=FLOATS, when=readable, priority=priority
    )
    def paged_attention(
        q: Tensor,
        cache: TorchPagedKV,
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
    ) -> tuple[Tensor, Tensor]:
        lengths, table, sunk = _contiguous(seq_lens, block_table, sinks)
        how: dict[str, Any] = {"scale": scale, "window": window, "softcap": softcap, "causal": causal, "exact": exact}
        return attend(q, Keys(cache.k, cache.v, lengths, table, scales=cache.parts[2:]), query_start, sunk, bias, **how)

    @registry.register(ops.sdpa_varlen, name=f"triton_sdpa_varlen{suffix}", dtypes=FLOATS, priority=priority)
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
    ) -> tuple[Tensor, Tensor]:
        keyed, valued, starts, sunk = _contiguous(k, v, key_start, sinks)
        how: dict[str, Any] = {"scale": scale, "window": window, "softcap": softcap, "causal": causal, "exact": exact}
        return attend(q, Keys(keyed, valued, starts=starts), query_start, sunk, bias, **how)

    @registry.register(
        ops.mla_attention, name=f"triton_mla_attention{suffix}", dtypes=FLOATS, when=readable, priority=priority
    )
    def mla_attention(
        q_latent: Tensor,
        q_rope: Tensor,
        cache: TorchPagedLatent,
        query_start: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        *,
        scale: float,
        causal: bool = True,
    ) -> tuple[Tensor, Tensor]:
        lengths, table = _contiguous(seq_lens, block_table)
        keys = Keys((pages := cache.latent[:, :, None]), pages, lengths, table, rope=cache.rope)
        return attend(q_latent, keys, query_start, scale=scale, causal=causal, q_rope=q_rope, exact=exact)


register_attention(TRITON_KERNELS, "", exact=True)


def register_rounded(registry: KernelRegistry) -> None:
    """Enter kernels before these that round exponentials to the dtype of the values."""
    register_attention(registry, "_rounded", exact=False, priority=1)
