"""Native paged attention against float64, its edge cases, and its independence of batch, chunks, threads and pages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from xinheng.backends._torch import TorchPagedKV
from xinheng.core.errors import DeviceError

UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@dataclass(frozen=True)
class Batch:
    """Sequences of (queries, length) with their cache; what no query may see is NaN, its table entries are absurd."""

    sizes: tuple[tuple[int, int], ...]
    heads: int
    kv_heads: int
    width: int
    v_width: int
    block_size: int = 16
    kind: torch.dtype = torch.float32
    cache_kind: torch.dtype = torch.float32
    window: int | None = None
    causal: bool = True
    columns: bool = False
    """Keys dim by dim and values head by head, as the device allocates them; else in the order of the axes."""
    seed: int = 0

    def made(self) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """All queries, and keys and values [length, kv_heads, width] of each sequence."""
        g = torch.Generator().manual_seed(self.seed)
        widths = (self.width, self.v_width)
        pairs = [[torch.randn(n, self.kv_heads, width, generator=g) for width in widths] for _, n in self.sizes]
        q = [torch.randn(n, self.heads, self.width, generator=g) for n, _ in self.sizes]
        return torch.cat(q).to(self.kind), [(k.to(self.cache_kind), v.to(self.cache_kind)) for k, v in pairs]

    def first_seen(self, queries: int, length: int) -> int:
        return max(0, length - queries - self.window + 1) if self.window else 0

    def paged(self) -> tuple[torch.Tensor, TorchPagedKV, torch.Tensor, torch.Tensor, torch.Tensor]:
        q, pairs = self.made()
        size = self.block_size
        columns = max(1, max(-(-n // size) for _, n in self.sizes))
        table = torch.full((len(pairs), columns), -(10**6), dtype=torch.int32)
        count = len(pairs) * columns + 1
        k = torch.full((count, size, self.kv_heads, self.width), torch.nan, dtype=self.cache_kind)
        v = torch.full((count, size, self.kv_heads, self.v_width), torch.nan, dtype=self.cache_kind)
        free = np.random.default_rng(self.seed).permutation(count).tolist()
        for s, ((queries, n), (keys, values)) in enumerate(zip(self.sizes, pairs, strict=True)):
            for position in range(self.first_seen(queries, n), n):
                if table[s, position // size] < 0:
                    table[s, position // size] = free.pop()
                block = int(table[s, position // size])
                k[block, position % size], v[block, position % size] = keys[position], values[position]
        starts = np.cumsum([0, *(n for n, _ in self.sizes)])
        lengths = [n for _, n in self.sizes]
        start, length = (torch.tensor(x, dtype=torch.int32) for x in (starts, lengths))
        if self.columns:
            k = k.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
            v = v.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)
        return q, TorchPagedKV(k, v), start, length, table

    def run(self, build: SimpleNamespace, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out: tuple[torch.Tensor, torch.Tensor] = build.paged_attention(
            *self.paged(), scale=self.width**-0.5, window=self.window, causal=self.causal, **options
        )
        return out

    def exact(self, softcap: float | None = None, sinks: torch.Tensor | None = None) -> tuple[Any, Any]:
        made, pairs = self.made()
        q, group = made.double().numpy(), self.heads // self.kv_heads
        extra = np.full(self.heads, -np.inf) if sinks is None else sinks.double().numpy()
        outs, sums, row = np.zeros((len(q), self.heads, self.v_width)), np.full(q.shape[:2], -np.inf), 0
        for (queries, length), pair in zip(self.sizes, pairs, strict=True):
            keys, values = (np.repeat(x.double().numpy(), group, axis=1) for x in pair)
            for position in range(length - queries, length):
                seen = [j for j in range(length) if self.sees(position, j)]
                if seen:
                    logits = np.einsum("jhd,hd->hj", keys[seen], q[row]) * self.width**-0.5
                    if softcap:
                        logits = softcap * np.tanh(logits / softcap)
                    top = np.maximum(logits.max(-1), extra)
                    weights = np.exp(logits - top[:, None])
                    total = weights.sum(-1) + np.exp(extra - top)
                    outs[row] = np.einsum("hj,jhd->hd", weights, values[seen]) / total[:, None]
                    sums[row] = top + np.log(total)
                row += 1
        return outs, sums

    def sees(self, position: int, key: int) -> bool:
        near = self.window is None or position - key < self.window
        return position >= 0 and near and (key <= position or not self.causal)


def assert_near(got: tuple[torch.Tensor, torch.Tensor], want: tuple[Any, Any]) -> None:
    out, lse = got
    error = np.abs(out.double().numpy() - want[0])
    assert out.shape == want[0].shape and lse.shape == want[1].shape and lse.dtype is torch.float32
    assert (error <= np.abs(want[0]) * UNIT[out.dtype] * 1.01 + 2e-5).all(), error.max()
    np.testing.assert_allclose(lse.double().numpy(), want[1], rtol=0, atol=2e-5)


MIXED = ((1, 1), (5, 5), (1, 70), (3, 200), (17, 130), (0, 9), (64, 64))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "v_width"),
    [(3, 3, 64, 64), (9, 3, 64, 64), (4, 1, 256, 256), (4, 2, 40, 24), (2, 1, 7, 5), (6, 1, 80, 96), (72, 2, 48, 32)],
)
def test_attention_over_many_shapes(
    build: SimpleNamespace, heads: int, kv_heads: int, width: int, v_width: int
) -> None:
    batch = Batch(MIXED, heads, kv_heads, width, v_width)
    got = batch.run(build)
    assert_near(got, batch.exact())
    columns = replace(batch, columns=True).run(build)
    assert torch.equal(columns[0], got[0]) and torch.equal(columns[1], got[1])


@pytest.mark.parametrize(
    "options",
    [
        {"window": 1},
        {"window": 50},
        {"window": 64},
        {"causal": False},
        {"causal": False, "window": 33},
        {"block_size": 7},
        {"block_size": 7, "columns": True},
        {"block_size": 32, "columns": True, "window": 50},
        {"columns": True, "causal": False},
    ],
    ids=str,
)
def test_what_a_query_sees(build: SimpleNamespace, options: dict[str, Any]) -> None:
    batch = replace(Batch(MIXED, 4, 2, 32, 32), **options)
    assert_near(batch.run(build), batch.exact())


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_softcap_and_sinks(build: SimpleNamespace, softcap: float | None, with_sinks: bool) -> None:
    batch = Batch(MIXED, 4, 2, 32, 32, window=90)
    sinks = torch.tensor([-3.0, 0.0, 4.0, 60.0]) if with_sinks else None
    assert_near(batch.run(build, softcap=softcap, sinks=sinks), batch.exact(softcap, sinks))


@pytest.mark.parametrize("kind", list(UNIT), ids=str)
@pytest.mark.parametrize("cache_kind", list(UNIT), ids=str)
def test_element_types_of_queries_and_cache(build: SimpleNamespace, kind: torch.dtype, cache_kind: torch.dtype) -> None:
    batch = Batch(((9, 90), (1, 65), (3, 140)), 4, 2, 48, 48, kind=kind, cache_kind=cache_kind)
    out, lse = batch.run(build)
    assert out.dtype is kind
    assert_near((out, lse), batch.exact())
    assert torch.equal(replace(batch, columns=True).run(build)[0], out)


@pytest.mark.parametrize("causal", [True, False])
def test_rows_without_keys_or_sequence_are_zero(build: SimpleNamespace, causal: bool) -> None:
    batch = Batch(((3, 2), (2, 0), (2, 5)), 2, 1, 16, 16, causal=causal)
    q, *rest = batch.paged()
    extra = torch.cat([q, torch.full((3, 2, 16), torch.nan)])
    out, lse = build.paged_attention(extra, *rest, torch.zeros(2), scale=0.25, causal=causal)
    unseen = [0, 3, 4, 7, 8, 9]
    assert (out[unseen] == 0).all() and (lse[unseen] == -torch.inf).all()
    want = batch.exact(sinks=torch.zeros(2))
    assert_near((out[:7], lse[:7]), want)


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("cache_kind", [torch.float32, torch.float16], ids=str)
def test_a_prompt_in_chunks_gives_the_bits_of_the_whole(
    native: SimpleNamespace, window: int | None, cache_kind: torch.dtype
) -> None:
    whole = Batch(((300, 300),), 6, 2, 64, 64, window=window, cache_kind=cache_kind, columns=True)
    q, cache, _, _, table = whole.paged()
    out, lse = whole.run(native)
    for sizes in ([1] * 20 + [280], [7, 64, 100, 129], [299, 1]):
        done = 0
        for n in sizes:
            starts, length = torch.tensor([0, n], dtype=torch.int32), torch.tensor([done + n], dtype=torch.int32)
            part = native.paged_attention(q[done : done + n], cache, starts, length, table, scale=0.125, window=window)
            assert torch.equal(part[0], out[done : done + n]) and torch.equal(part[1], lse[done : done + n])
            done += n


def test_a_sequence_has_the_same_bits_alone_and_in_a_batch(native: SimpleNamespace) -> None:
    batch = Batch(MIXED, 9, 3, 64, 64)
    q, cache, starts, lengths, table = batch.paged()
    out, lse = batch.run(native)
    for s, (n, _) in enumerate(MIXED):
        rows = slice(int(starts[s]), int(starts[s + 1]))
        own = torch.tensor([0, n], dtype=torch.int32)
        got = native.paged_attention(q[rows], cache, own, lengths[s : s + 1], table[s : s + 1], scale=0.125)
        assert torch.equal(got[0], out[rows]) and torch.equal(got[1], lse[rows])


@pytest.mark.parametrize("sizes", [((1, 1500),), ((2, 900), (1, 3)), ((80, 400),)], ids=str)
def test_threads_and_block_size_do_not_change_bits(native: SimpleNamespace, sizes: Any) -> None:
    batch = Batch(sizes, 4, 1, 64, 64, window=1200)
    results = []
    for threads in (1, 2, 5):
        native.library.set_threads(threads)
        layouts = ((16, False), (128, False), (5, False), (16, True), (128, True), (5, True))
        batches = [replace(batch, block_size=size, columns=columns) for size, columns in layouts]
        results += [each.run(native, sinks=torch.zeros(4)) for each in batches]
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_strided_queries_and_wide_index_types(native: SimpleNamespace) -> None:
    batch = Batch(((4, 20), (2, 40)), 2, 1, 16, 16)
    q, cache, starts, lengths, table = batch.paged()
    fused = torch.zeros(6, 4 * 16)
    fused[:, 16:48] = q.view(6, 32)
    view = fused[:, 16:48].view(6, 2, 16)
    got = native.paged_attention(view, cache, starts.long(), lengths.long(), table.long(), scale=0.25)
    assert torch.equal(got[0], batch.run(native)[0])


def test_impossible_batches_are_refused_before_anything_is_read(native: SimpleNamespace) -> None:
    q, cache, starts, lengths, table = Batch(((4, 20), (2, 40)), 2, 1, 16, 16).paged()
    bad = table.clone()
    bad[1, 2] = cache.k.shape[0]
    for wrong in (
        (q, cache, starts, lengths, bad),
        (q, cache, starts, torch.tensor([20, 4000], dtype=torch.int32), table),
        (q, cache, torch.tensor([0, 4, 7], dtype=torch.int32), lengths, table),
    ):
        with pytest.raises(DeviceError, match="sequence 1 has impossible lengths or blocks"):
            native.paged_attention(*wrong, scale=0.25)
    with pytest.raises(DeviceError, match="does not fit"):
        native.paged_attention(q[..., :8], cache, starts, lengths, table, scale=0.25)


@pytest.mark.parametrize("cache_kind", list(UNIT), ids=str)
@pytest.mark.parametrize("kind", list(UNIT), ids=str)
def test_write_cache_rounds_once_and_skips_negative_slots(
    build: SimpleNamespace, kind: torch.dtype, cache_kind: torch.dtype
) -> None:
    keys = torch.zeros(4, 2, 24, 8, dtype=cache_kind).permute(0, 3, 1, 2)
    cache = TorchPagedKV(keys, torch.zeros(4, 8, 2, 5, dtype=cache_kind))
    fused = (torch.randn(6, 3, 2 * 29) * 1e-3).to(kind)[:, 1]
    k, v = fused[:, :48].view(6, 2, 24), fused[:, 48:].view(6, 2, 5)
    slots = [31, -1, 0, 9, 8, 9]
    assert build.write_cache(cache, k, v, torch.tensor(slots, dtype=torch.int32)) is cache
    for pages, new in ((cache.k, k), (cache.v, v)):
        want = torch.zeros(32, 2, pages.shape[3], dtype=cache_kind)
        for token, slot in enumerate(slots):
            if slot >= 0:
                want[slot] = new[token].to(cache_kind)
        assert torch.equal(pages.reshape(32, 2, -1), want)


def test_write_cache_of_runs_of_tokens(native: SimpleNamespace) -> None:
    pages = torch.zeros(9, 3, 40, 32)
    cache = TorchPagedKV(pages.permute(0, 3, 1, 2), torch.zeros(9, 32, 3, 40))
    new = torch.randn(150, 3, 40)
    slots = torch.cat([torch.arange(3, 100), torch.tensor([-1]), torch.arange(200, 252)]).int()
    native.write_cache(cache, new, new * 2, slots)
    want = torch.zeros(288, 3, 40)
    want[slots[slots >= 0].long()] = new[slots >= 0]
    assert torch.equal(cache.k.reshape(288, 3, 40), want)
    assert torch.equal(cache.v.view(288, 3, 40), want * 2)


def test_write_cache_refuses_slots_beyond_the_cache(native: SimpleNamespace) -> None:
    cache = TorchPagedKV(torch.zeros(4, 8, 2, 24), torch.zeros(4, 8, 2, 24))
    new = torch.randn(2, 2, 24)
    with pytest.raises(DeviceError, match="slot 32 is beyond the 32"):
        native.write_cache(cache, new, new, torch.tensor([0, 32], dtype=torch.int32))
    assert (cache.k == 0).all()
    with pytest.raises(DeviceError, match="does not fit"):
        native.write_cache(cache, new[:, :1], new, torch.tensor([0, 1], dtype=torch.int32))
