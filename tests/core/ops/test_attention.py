"""Paged attention and its cache against a loop over single queries and keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xinheng.core import ops
from xinheng.core.errors import GraphError
from xinheng.core.ir import Builder, TensorType, paged_kv, paged_latent, sym
from xinheng.core.ir.dtype import float32, int32
from xinheng.core.ops import KVPages


def one_row(
    q: Any, keys: Any, values: Any, position: int, options: dict[str, Any], sink: float | None, bias: Any
) -> tuple[Any, float]:
    """Output and log-sum-exp of one query of one head over all keys of its sequence."""
    logits = {}
    for p in range(len(keys)):
        if position < 0 or (options["causal"] and p > position):
            continue
        if options["window"] is not None and position - p >= options["window"]:
            continue
        logit = float(np.dot(q, keys[p])) * options["scale"]
        if options["softcap"] is not None:
            logit = options["softcap"] * math.tanh(logit / options["softcap"])
        logits[p] = logit + (0.0 if bias is None else float(bias[p]))
    if not logits:
        return np.zeros(values.shape[-1]), -math.inf
    total = sum(math.exp(x) for x in logits.values()) + (0.0 if sink is None else math.exp(sink))
    out = sum(math.exp(x) / total * values[p] for p, x in logits.items())
    return out, math.log(total)


def straightforward(
    q: Any, cache: Any, start: Any, lens: Any, table: Any, sinks: Any = None, bias: Any = None, **options: Any
) -> tuple[Any, Any]:
    """Every row and head by itself."""
    tokens, heads, _ = q.shape
    size, group = cache.k.shape[1], heads // cache.k.shape[2]
    out, lse = np.zeros((tokens, heads, cache.v.shape[-1])), np.full((tokens, heads), -np.inf)
    for s, length in enumerate(lens):
        for row in range(start[s], start[s + 1]):
            position = length - (start[s + 1] - row)
            first = 0 if options["window"] is None else max(0, position - options["window"] + 1)
            for h in range(heads):
                # Pages that this query does not see are not even looked up.
                keys, values = (np.full((length, pages.shape[-1]), np.nan) for pages in cache)
                for p in range(min(first, length), length):
                    if table[s, p // size] >= 0:
                        keys[p] = cache.k[table[s, p // size], p % size, h // group]
                        values[p] = cache.v[table[s, p // size], p % size, h // group]
                sink = None if sinks is None else float(sinks[h])
                extra = None if bias is None else bias[row, h]
                out[row, h], lse[row, h] = one_row(q[row, h], keys, values, position, options, sink, extra)
    return out, lse


@st.composite
def problems(draw: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random batches with random options."""
    lengths = st.tuples(st.integers(0, 4), st.integers(0, 11))
    sequences = draw(st.lists(lengths, min_size=1, max_size=3))
    kv_heads, group, size = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    heads, wide = kv_heads * group, 12
    blocks = len(sequences) * wide
    start = np.cumsum([0, *(n for n, _ in sequences)])
    tokens = int(start[-1]) + draw(st.integers(0, 2))
    cache = KVPages(rng.normal(size=(blocks, size, kv_heads, 3)), rng.normal(size=(blocks, size, kv_heads, 2)))
    table = rng.permutation(blocks).reshape(len(sequences), wide)
    sinks = rng.normal(size=heads) if draw(st.booleans()) else None
    bias = rng.normal(size=(tokens, heads, 11)) if draw(st.booleans()) else None
    options: dict[str, Any] = {
        "scale": 0.7,
        "window": draw(st.sampled_from([None, 1, 3, 50])),
        "softcap": draw(st.sampled_from([None, 2.0])),
        "causal": draw(st.booleans()),
    }
    lens = np.array([length for _, length in sequences])
    if options["window"] is not None and options["causal"]:
        for row, (n, length) in zip(table, sequences, strict=True):
            row[: max(0, length - n - options["window"] + 1) // size] = -1
    return (rng.normal(size=(tokens, heads, 3)), cache, start, lens, table, sinks, bias), options


@settings(max_examples=150, deadline=None)
@given(problems())
def test_random_batches(problem: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    operands, options = problem
    out, lse = ops.paged_attention.reference(*operands, **options)
    want_out, want_lse = straightforward(*operands, **options)
    np.testing.assert_allclose(out, want_out, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-10, atol=1e-12)


def attend(q: Any, keys: Any, values: Any, **options: Any) -> tuple[Any, Any]:
    """One sequence in one block, whose queries are its last rows."""
    cache = KVPages(keys[None], values[None])
    sinks = options.pop("sinks", None)
    start, lens = np.array([0, len(q)]), np.array([len(keys)])
    given: dict[str, Any] = {"scale": 1.0} | options
    made: tuple[Any, Any] = ops.paged_attention.reference(q, cache, start, lens, np.array([[0]]), sinks, **given)
    return made


RNG = np.random.default_rng(5)
Q, K, V = RNG.normal(size=(2, 1, 4)), RNG.normal(size=(5, 1, 4)), RNG.normal(size=(5, 1, 3))


def test_sinks_take_probability_but_add_no_value() -> None:
    out, lse = attend(Q, K, V)
    for sink in (-50.0, 0.3, 30.0):
        with_sink, with_lse = attend(Q, K, V, sinks=np.array([sink]))
        np.testing.assert_allclose(with_lse, np.logaddexp(lse, sink))
        np.testing.assert_allclose(with_sink, out * np.exp(lse - with_lse)[..., None])


def test_large_logits_do_not_overflow() -> None:
    out, lse = attend(Q * 1e5, K, V)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(lse[1, 0], (Q[1, 0] * 1e5 @ K[:, 0].T).max(), rtol=1e-12)
    with np.errstate(all="raise", under="ignore"):
        softened, _ = attend(Q * 1e5, K, V, softcap=3.0)
    assert np.ptp(V) > np.abs(softened).max() > 0


def test_a_window_of_one_returns_the_value_at_the_query() -> None:
    out, _ = attend(Q, K, V, window=1)
    np.testing.assert_allclose(out[:, 0], V[3:, 0])


def test_rows_that_see_nothing_are_zero_even_with_sinks() -> None:
    q = np.concatenate([Q, Q])
    for sinks in (None, np.array([1.0])):
        out, lse = attend(q, K[:2], V[:2], sinks=sinks)
        assert not out[:2].any()
        assert (lse[:2] == -np.inf).all()
        assert np.isfinite(lse[2:]).all()


def test_pages_beyond_what_is_seen_are_not_read() -> None:
    cache = KVPages(np.full((3, 2, 1, 4), np.nan), np.full((3, 2, 1, 3), np.nan))
    cache.k[1], cache.v[1] = K[:2], V[:2]
    for table in ([[-1, 1, -1]], [[999, 1, 10**9]]):
        out, _ = ops.paged_attention.reference(
            Q[:1], cache, np.array([0, 1]), np.array([4]), np.array(table), scale=1.0, window=2
        )
        assert np.isfinite(out).all()


def test_writes() -> None:
    k, v = RNG.normal(size=(4, 1, 2)), RNG.normal(size=(4, 1, 3))
    before = KVPages(np.zeros((2, 3, 1, 2)), np.zeros((2, 3, 1, 3)))
    after = ops.write_cache.reference(before, k, v, np.array([5, -1, 0, 2]))
    assert isinstance(after, KVPages)
    np.testing.assert_array_equal(after.k.reshape(6, 2), np.stack([k[2, 0], [0, 0], k[3, 0], [0, 0], [0, 0], k[0, 0]]))
    np.testing.assert_array_equal(after.v[1, 2], v[0])
    assert not before.k.any()
    assert ops.write_cache.reference(before, k[:0], v[:0], np.zeros(0, int)) is before
    again = ops.write_cache.reference(before, k, v, np.array([1, 1, 1, -1]))
    np.testing.assert_array_equal(again.k[0, 1], k[2])


def call(**changes: Any) -> Any:
    b = Builder()
    kinds: dict[str, Any] = {
        "q": TensorType(float32, (sym("n"), 4, 8)),
        "cache": paged_kv(2, 8, 6, "float32"),
        "query_start": TensorType(int32, (sym("s") + 1,)),
        "seq_lens": TensorType(int32, (sym("s"),)),
        "block_table": TensorType(int32, (sym("s"), sym("w"))),
        "sinks": None,
        "bias": None,
    } | {k: v for k, v in changes.items() if k != "window"}
    made = {k: v and (b.state(k, v) if k == "cache" else b.input(k, v)) for k, v in kinds.items()}
    return ops.paged_attention(*made.values(), scale=1.0, window=changes.get("window"))


def test_types_of_attention() -> None:
    out, lse = call(sinks=TensorType(float32, (4,)), bias=TensorType(float32, (sym("n"), 4, 9)), window=3)
    assert out.type == TensorType(float32, (sym("n"), 4, 6))
    assert lse.type == TensorType(float32, (sym("n"), 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cache": paged_latent(4, 2, "float32")}, "the cache must be paged_kv, not state<paged_latent"),
        ({"q": TensorType(float32, (sym("n"), 4, 7))}, r"q must be \[tokens, heads, 8\]"),
        ({"q": TensorType(float32, (sym("n"), 3, 8))}, "3 heads do not share 2 key heads"),
        ({"q": TensorType(float32, (sym("n"), sym("h"), 8))}, "h heads do not share 2 key heads"),
        ({"seq_lens": TensorType(float32, (sym("s"),))}, "seq_lens must be integers, not float32"),
        ({"seq_lens": TensorType(int32, ())}, "seq_lens must have 1 axes"),
        ({"block_table": TensorType(int32, (sym("s"),))}, "block_table must have 2 axes"),
        ({"query_start": TensorType(int32, (sym("s"),))}, "query_start must have one more element than seq_lens"),
        ({"block_table": TensorType(int32, (sym("s") + 1, 2))}, "block_table must have one row per sequence"),
        ({"sinks": TensorType(float32, (2,))}, r"sinks must be \[4\]"),
        ({"bias": TensorType(float32, (sym("n"), 2, 9))}, r"bias must be \[tokens, 4, keys\]"),
        ({"bias": TensorType(float32, (sym("n") + 1, 4, 9))}, "bias and q have different numbers of tokens"),
        ({"window": 0}, "window must be positive, is 0"),
    ],
)
def test_wrong_types_of_attention(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=f"paged_attention: .*{message}"):
        call(**changes)


@pytest.mark.parametrize(
    ("k", "v", "slots", "message"),
    [
        ((3, 2, 4), (3, 2, 5), (3,), r"v is float32\[3, 2, 5\], the cache holds \[2, 4\]"),
        ((3, 1, 4), (3, 2, 4), (3,), r"k is float32\[3, 1, 4\], the cache holds \[2, 4\]"),
        ((3, 2, 4), (3, 2, 4), (4,), "k and slots have different numbers of tokens: 3 is not 4"),
        ((3, 2, 4), (3, 2, 4), (), "slots must have 1 axes"),
    ],
)
def test_wrong_types_of_writes(k: Any, v: Any, slots: Any, message: str) -> None:
    b = Builder()
    cache = b.state("cache", paged_kv(2, 4, 4, "float32"))
    with pytest.raises(GraphError, match=message):
        ops.write_cache(
            cache,
            b.input("k", TensorType(float32, k)),
            b.input("v", TensorType(float32, v)),
            b.input("slots", TensorType(int32, slots)),
        )
