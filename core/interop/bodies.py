"""What primitives without an ONNX op mean in terms of other ops, with states as plain tensors.

A body takes values of a graph as its op does, except that a state is the tuple of its tensors, in which it also
returns what it writes: `paged_kv` is k and v, `paged_latent` latent and rope, `sequence_state` its slots.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .. import ops
from ..errors import GraphError
from ..ir.dim import Dim, Expr, product, sym
from ..ir.dtype import DType, float32, int8, int32, int64
from ..ir.graph import Value
from ..ir.types import StateType, TensorType
from ..ops.sampling import MULTIPLIERS, WEYL

Body = Callable[..., Any]
BODIES: dict[str, Body] = {}


def body(function: Body) -> Body:
    """Register a body for the op of the same name."""
    BODIES[function.__name__] = function
    return function


def state_tensors(name: str, kind: StateType) -> list[tuple[str, TensorType]]:
    """The names and types of the tensors that a state is exported as."""
    stem = re.sub(r"\W|^(?=\d)", "_", name)
    sizes = ("blocks", "block_size") if kind.paged else ("slots",)
    lead: tuple[Dim, ...] = tuple(sym(f"{stem}_{size}") for size in sizes)
    return [(part.name, TensorType(part.dtype, (*lead, *part.shape))) for part in kind.parts]


def _full(like: Value, shape: tuple[Dim, ...], value: Any, kind: DType) -> Value:
    made: Value = like.builder.call(ops.full, (), {"shape": shape, "value": value, "dtype": kind})
    return made


def _arange(like: Value, size: Dim, kind: DType = int64) -> Value:
    made: Value = like.builder.call(ops.arange, (), {"size": size, "dtype": kind})
    return made


def _in(x: Value, kind: DType) -> Value:
    made: Value = x if x.dtype is kind else ops.cast(x, dtype=kind)
    return made


def _stored(pages: Value, new: Value, slots: Value) -> Value:
    """Pages [blocks, block_size, ...] with rows in slots; rows for slot -1 go to one more row that is cut off."""
    count, inner = pages.shape[0] * pages.shape[1], product(pages.shape[2:])
    flat = ops.concat(ops.reshape(pages, shape=(count, inner)), _full(pages, (1, inner), 0, pages.dtype), axis=0)
    last = _full(pages, (), count, int64)
    place = ops.where(ops.lt(_in(slots, int64), 0), last, _in(slots, int64))
    index = ops.expand(ops.reshape(place, shape=(new.shape[0], 1)), shape=(new.shape[0], inner))
    rows = ops.reshape(_in(new, pages.dtype), shape=(new.shape[0], inner))
    written = ops.slice(ops.scatter(flat, index, rows, axis=0), axis=0, start=0, stop=count)
    made: Value = ops.reshape(written, shape=pages.shape)
    return made


@body
def write_cache(cache: tuple[Value, ...], k: Value, v: Value, slots: Value) -> Any:
    rows = (k, v)
    if len(cache) > len(rows):  # codes of both, then the scales of both
        coded = [ops.dynamic_quant(x, dtype=int8) for x in rows]
        scales = [ops.reshape(scale, shape=scale.shape[:-1]) for _, scale in coded]
        rows = (*(codes for codes, _ in coded), *scales)
    return tuple(_stored(pages, new, slots) for pages, new in zip(cache, rows, strict=True))


@body
def write_latent_cache(cache: tuple[Value, Value], latent: Value, rope: Value, slots: Value) -> Any:
    return tuple(_stored(pages, new, slots) for pages, new in zip(cache, (latent, rope), strict=True))


@body
def copy_blocks(cache: tuple[Value, ...], pairs: Value) -> Any:
    source, target = (
        ops.reshape(_in(part, int64), shape=(pairs.shape[0],)) for part in ops.split(pairs, sizes=(1, 1), axis=1)
    )
    made = []
    for pages in cache:
        inner = product(pages.shape[1:])
        flat = ops.reshape(pages, shape=(pages.shape[0], inner))
        index = ops.expand(ops.reshape(target, shape=(pairs.shape[0], 1)), shape=(pairs.shape[0], inner))
        written = ops.scatter(flat, index, ops.index_select(flat, source), axis=0)
        made.append(ops.reshape(written, shape=pages.shape))
    return tuple(made)


def _cached(cache: tuple[Value, ...], seq_lens: Value, block_table: Value) -> tuple[list[Value], Value]:
    """The cached rows of sequences one after the other, and where each sequence starts."""
    size, seqs = cache[0].shape[1], seq_lens.shape[0]
    longest = block_table.shape[1] * size
    lengths = ops.reshape(_in(seq_lens, int64), shape=(seqs, 1))
    there = ops.lt(ops.reshape(_arange(seq_lens, longest), shape=(1, longest)), lengths)
    owner, position = ops.split(ops.nonzero(there), sizes=(1, 1), axis=0)
    rows = owner.shape[1]
    owner, position = (ops.reshape(x, shape=(rows,)) for x in (owner, position))
    width = _full(seq_lens, (), size, int64)
    entry = ops.add(ops.mul(owner, _full(seq_lens, (), block_table.shape[1], int64)), ops.trunc_div(position, width))
    block = ops.index_select(ops.reshape(_in(block_table, int64), shape=(seqs * block_table.shape[1],)), entry)
    found = ops.logical_and(ops.le(0, block), ops.lt(block, _full(seq_lens, (), cache[0].shape[0], int64)))
    place = ops.add(ops.mul(ops.where(found, block, 0), width), ops.fmod(position, width))
    gathered = []
    for pages in cache:
        flat = ops.reshape(pages, shape=(pages.shape[0] * size, *pages.shape[2:]))
        picked = ops.index_select(flat, place)
        mask = ops.reshape(found, shape=(rows, *(1,) * (len(pages.shape) - 2)))
        gathered.append(ops.where(mask, picked, _full(pages, (), 0, pages.dtype)))
    starts = ops.cumsum(_in(seq_lens, int32), axis=0)
    return gathered, ops.concat(_full(seq_lens, (1,), 0, int32), starts, axis=0)


@body
def gather_kv_cache(cache: tuple[Value, ...], seq_lens: Value, block_table: Value) -> Any:
    (k, v, *scales), starts = _cached(cache, seq_lens, block_table)
    if scales:
        k, v = (
            ops.mul(_in(codes, float32), ops.reshape(scale, shape=(*scale.shape, 1)))
            for codes, scale in zip((k, v), scales, strict=True)
        )
    return k, v, starts


@body
def gather_latent_cache(cache: tuple[Value, Value], seq_lens: Value, block_table: Value) -> Any:
    (latent, rope), starts = _cached(cache, seq_lens, block_table)
    return latent, rope, starts


@body
def causal_conv1d(
    x: Value,
    state: tuple[Value],
    weight: Value,
    query_start: Value,
    slots: Value,
    fresh: Value,
    bias: Value | None,
    *,
    activation: str | None,
) -> Any:
    """Every input of a window is a row of one table: the rows of x, what the slots remember, and a row of zeros."""
    tokens, channels = x.shape
    seqs, width, count = slots.shape[0], weight.shape[1], state[0].shape[0]
    assert isinstance(width, int)
    memory = ops.reshape(ops.permute(state[0], axes=(0, 2, 1)), shape=(count * (width - 1), channels))
    rows = _wide(x)
    table = ops.concat(rows, _in(memory, rows.dtype), _full(x, (1, channels), 0, rows.dtype), axis=0)
    starts, slot = _in(query_start, int64), _in(slots, int64)
    first = ops.slice(starts, axis=0, start=0, stop=seqs)
    length = ops.sub(ops.slice(starts, axis=0, start=1, stop=seqs + 1), first)
    usable = ops.logical_and(ops.logical_not(fresh), ops.le(0, slot))
    last = _full(x, (), tokens + count * (width - 1), int64)

    def source(of: tuple[Value, Value, Value], offset: Value) -> Value:
        """The row of the table that holds the input at an offset from the first token of a sequence."""
        begin, place, remembered = of
        past = ops.add(ops.add(ops.mul(place, width - 1), offset), _full(x, (), tokens + width - 1, int64))
        made: Value = ops.where(ops.lt(offset, 0), ops.where(remembered, past, last), ops.add(begin, offset))
        return made

    index = _arange(x, tokens)
    ends = ops.reshape(ops.add(first, length), shape=(1, seqs))
    after = ops.sum(_in(ops.le(ends, ops.reshape(index, shape=(tokens, 1))), int64), axis=1)
    inside = ops.lt(after, _full(x, (), seqs, int64))
    owner = ops.where(inside, after, 0)
    row = (ops.index_select(first, owner), ops.index_select(slot, owner), ops.index_select(usable, owner))
    total: Value | None = None
    for j, column in enumerate(_columns(weight)):
        picked = source(row, ops.add(ops.sub(index, row[0]), j - width + 1))
        term = ops.mul(ops.index_select(table, ops.where(inside, picked, last)), _wide(column))
        total = term if total is None else ops.add(total, term)
    assert total is not None
    total = total if bias is None else ops.add(total, _wide(bias))
    total = ops.silu(total) if activation else total
    y = ops.where(ops.reshape(inside, shape=(tokens, 1)), total, 0.0)
    kept = [
        ops.reshape(
            ops.index_select(table, source((first, slot, usable), ops.add(length, m - width + 1))),
            shape=(seqs, channels, 1),
        )
        for m in range(width - 1)
    ]
    data = ops.concat(*kept, axis=2) if len(kept) > 1 else kept[0]
    target = ops.where(ops.lt(0, length), slot, -1)
    pages = ops.reshape(state[0], shape=(1, count, channels, width - 1))
    written = _stored(pages, data, target)
    return _in(y, x.dtype), ops.reshape(written, shape=state[0].shape)


def _columns(weight: Value) -> list[Value]:
    """The columns of a matrix, as vectors."""
    width = weight.shape[1]
    assert isinstance(width, int)
    parts: Any = ops.split(weight, sizes=(1,) * width, axis=1)
    pieces = parts if isinstance(parts, tuple) else (parts,)
    return [ops.reshape(p, shape=(weight.shape[0],)) for p in pieces]


def _wide(x: Value) -> Value:
    return _in(x, float32) if x.dtype.bits < 32 else x


@body
def batched_linear(x: Value, weight: Value, *, transposed: bool) -> Any:
    rows = ops.permute(_wide(x), axes=(1, 0, 2))
    matrix = weight if transposed else ops.permute(weight, axes=(0, 2, 1))
    return _in(ops.permute(ops.matmul(rows, _in(matrix, rows.dtype)), axes=(1, 0, 2)), x.dtype)


@body
def grouped_linear(x: Value, weight: Value, counts: Value) -> Any:
    """One product with the weight of its own per row."""
    rows, groups = x.shape[0], weight.shape[0]
    ends = ops.reshape(ops.cumsum(_in(counts, int64), axis=0), shape=(1, groups))
    index = ops.reshape(_arange(x, rows), shape=(rows, 1))
    group = ops.sum(_in(ops.le(ends, index), int64), axis=1)
    chosen = _in(ops.index_select(weight, group), _wide(x).dtype)
    y = ops.matmul(chosen, ops.reshape(_wide(x), shape=(rows, x.shape[1], 1)))
    return _in(ops.reshape(y, shape=(rows, weight.shape[1])), x.dtype)


@body
def moe_permute(x: Value, experts: Value, *, num_experts: int) -> Any:
    tokens, k = experts.shape
    flat = ops.reshape(_in(experts, int64), shape=(tokens * k,))
    _, order = ops.topk(ops.neg(flat), k=tokens * k)
    token = ops.trunc_div(order, _full(x, (), k, int32))
    steps = ops.reshape(_arange(x, num_experts), shape=(1, num_experts))
    counts = ops.sum(_in(ops.eq(ops.reshape(flat, shape=(tokens * k, 1)), steps), int32), axis=0)
    return ops.index_select(x, token), order, counts


def _xor(a: Value, b: Any) -> Value:
    """Bits in exactly one of two numbers that are not negative."""
    both = ops.bitwise_and(a, b)
    made: Value = ops.sub(ops.add(a, b), ops.add(both, both))
    return made


@body
def random_uniform(seed: Value, counter: Value) -> Any:
    """Philox4x32-10 on words held in int64; the wrap of a product leaves its lower half right."""
    mask = 0xFFFFFFFF
    c0 = _in(counter, int64)
    c1 = c2 = c3 = ops.mul(c0, 0)
    k0, k1 = (ops.reshape(part, shape=counter.shape) for part in ops.split(_in(seed, int64), sizes=(1, 1), axis=1))
    for _ in range(10):
        p0, p1 = ops.mul(c0, MULTIPLIERS[0]), ops.mul(c2, MULTIPLIERS[1])
        high0, high1 = (ops.bitwise_and(ops.bitwise_shift(p, bits=-32), mask) for p in (p0, p1))
        low0, low1 = (ops.bitwise_and(p, mask) for p in (p0, p1))
        c0, c1, c2, c3 = _xor(_xor(high1, c1), k0), low1, _xor(_xor(high0, c3), k1), low0
        k0, k1 = (ops.bitwise_and(ops.add(k, w), mask) for k, w in ((k0, WEYL[0]), (k1, WEYL[1])))
    return ops.mul(_in(ops.bitwise_shift(c0, bits=-8), float32), 2.0**-24)


@body
def cumprod(x: Value, *, axis: int) -> Any:
    size = x.shape[axis]
    if isinstance(size, Expr):
        raise GraphError(f"cumprod over an axis of symbolic size {size} has no form in ONNX")
    made: list[Value] = []
    for i in range(size):
        part = ops.slice(_wide(x), axis=axis, start=i, stop=i + 1)
        made.append(ops.mul(made[-1], part) if made else part)
    return _in(ops.concat(*made, axis=axis), x.dtype) if made else x


@body
def log1p(x: Value) -> Any:
    """log(1 + x) x / ((1 + x) - 1), whose errors cancel (Kahan; Higham 2002, section 1.14.1)."""
    wide = _wide(x)
    u = ops.add(wide, 1.0)
    apart = ops.sub(u, 1.0)
    small = ops.eq(apart, 0.0)
    made = ops.mul(ops.log(u), ops.div(wide, ops.where(small, 1.0, apart)))
    finite = ops.where(ops.isfinite(u), made, ops.log(u))
    return _in(ops.where(small, wide, finite), x.dtype)


@body
def expm1(x: Value) -> Any:
    """(u - 1) x / log(u) for u = exp(x), whose errors cancel (Kahan; Higham 2002, section 1.14.1)."""
    wide = _wide(x)
    u = ops.exp(wide)
    apart, level = ops.sub(u, 1.0), ops.log(u)
    plain = ops.logical_or(ops.eq(level, 0.0), ops.logical_not(ops.isfinite(level)))
    made = ops.mul(apart, ops.div(wide, ops.where(plain, 1.0, level)))
    far = ops.where(ops.eq(u, 1.0), wide, apart)
    return _in(ops.where(plain, far, made), x.dtype)
