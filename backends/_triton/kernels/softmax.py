"""What kernels of attention share: softmax over keys that come in tiles, and tiles in chunks.

A chunk is a run of keys between fixed positions. Its sums are made by themselves and then added to those of the chunks
before it, by whichever kernel: so it does not change a bit of the result whether one program goes through all chunks or
each has a program of its own, nor how many queries a program has.
"""

from __future__ import annotations

import triton.language as tl

from .scalar import device, narrow, product, widen


@device
def exponential(x, top):
    """e^(x - top), where a top of -inf stands for no key at all."""
    return tl.exp(x - tl.where(top == float("-inf"), 0.0, top))


@device
def weighted(p, value, total, PARTS: tl.constexpr):
    """total + p value with p as the sum of so many numbers of the dtype of the values: 3 of bfloat16 are exact."""
    for _ in tl.static_range(PARTS):
        part = narrow(p, value.dtype)
        total = product(part, value, total)
        p -= widen(part)
    return total


@device
def merged(top, total, sums, other_top, other_total, other_sums):
    """Largest logits [rows], sums of exponentials [rows] and weighted values [rows, width] of two sets of keys."""
    highest = tl.maximum(top, other_top)
    mine, theirs = exponential(top, highest), exponential(other_top, highest)
    return (
        highest,
        total * mine + other_total * theirs,
        sums * mine[:, None] + other_sums * theirs[:, None],
    )


@device
def store_finished(out, lse, top, total, sums, sinks, head, line, used, width, column):
    """Store outputs and log-sum-exps of rows; `sinks` add a logit without a value to those that see a key."""
    seen = total != 0.0  # the largest logit alone gives 1
    if sinks is not None:
        sink = tl.load(sinks + head, used, 0.0)
        sink = widen(sink)
        highest = tl.maximum(top, sink)
        mine = exponential(top, highest)
        total = total * mine + exponential(sink, highest)
        sums = sums * mine[:, None]
        top = highest
    safe = tl.where(seen, total, 1.0)
    made = tl.where(seen[:, None], tl.div_rn(sums, safe[:, None]), 0.0)
    to = out + line[:, None] * width + column[None, :]
    tl.store(to, narrow(made, out.dtype.element_ty), used[:, None] & (column < width)[None, :])
    tl.store(lse + line, tl.where(seen, top + tl.log(safe), float("-inf")), used)


@device
def keys_of(lengths, key_starts, s, seqs, PAGED: tl.constexpr):
    """How many keys a sequence has, and which row is the first of those that lie side by side."""
    first = tl.full((), 0, tl.int64)
    if PAGED:
        length = tl.load(lengths + s, s < seqs, 0).to(tl.int32)
    else:
        first = tl.load(key_starts + s, s < seqs, 0).to(tl.int64)
        length = (tl.load(key_starts + s + 1, s < seqs, 0) - first).to(tl.int32)
    return length, first


@device
def span_of(length, earliest, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BLOCK_Q: tl.constexpr):
    """The keys that queries from position `earliest` on see, from the first to the one behind the last."""
    latest = tl.minimum(earliest + BLOCK_Q, length) - 1
    stop = tl.where(latest >= 0, latest + 1 if CAUSAL else length, 0)
    start = tl.maximum(earliest - window + 1, 0) if WINDOW else 0
    return start, stop


@device
def sequence_of(starts, seqs, tile, BLOCK_Q: tl.constexpr):
    """The sequence that a tile of queries belongs to; rows behind the last sequence form one more."""
    low, high = 0, seqs + 1
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts + middle).to(tl.int32) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle
    return low
