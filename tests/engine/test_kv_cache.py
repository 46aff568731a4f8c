"""Blocks are neither lost nor held twice, a sequence grows in all groups or in none, and windows give blocks back."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from xinheng.core.errors import ModelError, SettingsError, XinhengError
from xinheng.core.ir.dtype import float16
from xinheng.core.ir.types import paged_kv, sequence_state
from xinheng.engine.kv_cache import BlockPool, CacheGroup, GroupUsage, KVCache

KV = paged_kv(2, 8, 8, "float16")


def cache(blocks: int, block_size: int = 4, window: int | None = None, window_blocks: int = 0) -> KVCache:
    groups = [CacheGroup("full", (0, 2), KV)]
    counts = {"full": blocks}
    if window is not None:
        groups.append(CacheGroup("window", (1, 3), KV, window))
        counts["window"] = window_blocks
    return KVCache(groups, counts, block_size)


def test_pool_counts_owners() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(3)
    assert len(set(blocks)) == 3 and pool.free_blocks == 1
    pool.share(blocks[:2])
    assert pool.reclaimable(blocks) == 1
    pool.free(blocks)
    assert pool.free_blocks == 2
    pool.free(blocks[:2])
    assert pool.free_blocks == 4


def test_pool_refuses_what_would_corrupt_it() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.allocate(2)
    with pytest.raises(XinhengError, match="0 free"):
        pool.allocate(1)
    pool.free(blocks[:1])
    with pytest.raises(XinhengError, match=f"block {blocks[0]} is freed twice"):
        pool.free(blocks[:1])
    with pytest.raises(XinhengError, match="is free and cannot be shared"):
        pool.share(blocks[:1])
    with pytest.raises(SettingsError, match="int32"):
        BlockPool(2**28, 16)
    with pytest.raises(SettingsError):
        BlockPool(0, 16)


def test_groups_and_counts_must_match() -> None:
    with pytest.raises(ModelError, match="match the block counts"):
        KVCache([CacheGroup("a", (0,), KV)], {"b": 4}, 4)
    with pytest.raises(ModelError, match="distinct"):
        KVCache([CacheGroup("a", (0,), KV)] * 2, {"a": 4}, 4)
    with pytest.raises(ModelError, match="window 0"):
        KVCache([CacheGroup("a", (0,), KV, 0)], {"a": 4}, 4)
    with pytest.raises(ModelError, match="cannot be paged"):
        KVCache([CacheGroup("a", (0,), sequence_state((2,), float16))], {"a": 4}, 4)


def test_slots_follow_the_block_table() -> None:
    kv = cache(8)
    assert kv.allocate("a", 3) and kv.allocate("b", 5) and kv.allocate("a", 10)
    table = kv.block_table("a")["full"]
    assert len(table) == 3
    slots = kv.slots("a", 2, 10)["full"]
    assert slots.dtype.name == "int32"
    assert slots.tolist() == [table[p // 4] * 4 + p % 4 for p in range(2, 10)]
    assert not set(table) & set(kv.block_table("b")["full"])


def test_growth_is_all_or_nothing_over_groups() -> None:
    kv = cache(8, window=4, window_blocks=2)
    assert kv.allocate("a", 6)
    before = kv.usage(), kv.block_table("a")
    assert not kv.allocate("a", 12)  # full has 8 blocks, window has 2 and may free none: query 6 sees position 3
    assert not kv.allocate("b", 1)
    assert (kv.usage(), kv.block_table("a")) == before
    assert kv.allocate("a", 8)
    assert kv.allocate("a", 12)  # query 8 sees no further back than 5


def test_window_frees_before_it_takes_and_keeps_logical_indices() -> None:
    kv = cache(8, window=4, window_blocks=2)
    assert kv.allocate("a", 8)
    assert kv.allocate("a", 9)
    table = kv.block_table("a")["window"]
    assert table[0] == -1 and -1 not in table[1:] and len(table) == 3
    assert kv.slots("a", 8, 9)["window"].tolist() == [table[2] * 4]
    assert (kv.slots("a", 0, 4)["window"] < 0).all()
    assert -1 not in kv.block_table("a")["full"]


def test_window_frees_as_soon_as_blocks_are_out_of_sight() -> None:
    kv = cache(32, window=3, window_blocks=32)
    assert kv.allocate("a", 30)
    assert kv.usage()["window"].used == 8
    assert kv.allocate("a", 31)  # block 7 has room for it, blocks 0..6 are out of sight of query 30 (sees 28..30)
    assert kv.usage()["window"].used == 1
    for first, used in ((5, 2), (6, 1)):  # query 5 still sees position 3 of block 0, query 6 does not
        assert kv.allocate(f"b{first}", first) and kv.allocate(f"b{first}", first + 1)
        assert sum(block >= 0 for block in kv.block_table(f"b{first}")["window"]) == used


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
@pytest.mark.parametrize("window", [1, 2, 5, 16, 17])
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_window_group_is_bounded_by_window_chunk_and_block(block_size: int, window: int, chunk: int) -> None:
    tokens = 120
    group = CacheGroup("window", (0,), KV, window)
    peak = group.peak_blocks(tokens, chunk, block_size)
    assert peak <= -(-(window + chunk) // block_size) + 1
    kv = KVCache([group], {"window": peak}, block_size)
    most = 0
    for start in range(0, tokens, chunk):
        total = min(start + chunk, tokens)
        assert kv.allocate("a", total)
        most = max(most, kv.usage()["window"].used)
        visible = range(group.first_visible(start), total)
        assert -1 not in [kv.block_table("a")["window"][p // block_size] for p in visible]
    assert most == peak or peak == most + 1  # the bound holds for any alignment of chunks to blocks
    kv.release("a")
    assert kv.usage()["window"].used == 0


def test_capacity() -> None:
    kv = cache(8, window=6, window_blocks=4)
    assert kv.capacity(32, chunk=4) and not kv.capacity(33, chunk=4)
    assert kv.longest(100) == 32 and kv.longest(20) == 20
    assert cache(100, window=6, window_blocks=2).longest(1000) == 8  # no window fits: as long as two blocks
    assert cache(100, window=6, window_blocks=3).longest(1000) == 400
    assert kv.blocks_needed(20, chunk=4) == {"full": 5, "window": 3}


def test_room_leaves_spare_blocks() -> None:
    kv = cache(4)
    assert kv.has_room(8, 8, 2, {}) and not kv.has_room(8, 8, 3, {})
    assert kv.allocate("a", 1)
    assert kv.has_room(8, 8, 1, {}) and not kv.has_room(9, 8, 1, {})
    assert kv.has_room(8, 8, 0, {"a": 8}) and not kv.has_room(8, 8, 1, {"a": 8})
    assert kv.has_room(12, 8, 0, {"a": 1})


def test_release_and_repeats() -> None:
    kv = cache(2)
    assert kv.allocate("a", 8)
    assert not kv.allocate("b", 1)
    kv.release("a")
    kv.release("a")
    kv.release("never seen")
    assert kv.usage() == {"full": GroupUsage(2, 0)}
    assert kv.allocate("b", 8) and kv.usage()["full"].fraction == 1.0
    with pytest.raises(XinhengError, match="cannot shrink"):
        kv.allocate("b", 7)


class Ownership(RuleBasedStateMachine):
    """Random growth and release of six sequences against a plain account of who must hold what."""

    @initialize(size=st.integers(1, 4), full=st.integers(1, 12), window=st.integers(1, 9), held=st.integers(1, 8))
    def start(self, size: int, full: int, window: int, held: int) -> None:
        self.size = size
        self.cache = cache(full, size, window, held)
        self.tokens: dict[str, int] = {}
        self.first: dict[str, int] = {}  # first logical block that a window table may still hold
        self.window = window

    @rule(name=st.sampled_from("abcdef"), more=st.integers(1, 3) | st.integers(1, 9))
    def grow(self, name: str, more: int) -> None:
        start = self.tokens.get(name, 0)
        before = self.cache.usage(), {n: self.cache.block_table(n) for n in self.tokens}
        first = max(0, start - self.window + 1) // self.size
        if self.cache.allocate(name, start + more):
            self.tokens[name], self.first[name] = start + more, first
        else:
            assert before == (self.cache.usage(), {n: self.cache.block_table(n) for n in self.tokens})
            stop, held = -(-(start + more) // self.size), -(-start // self.size)
            lack = {}
            for group, out in (("full", 0), ("window", first - self.first.get(name, 0))):
                usage = self.cache.usage()[group]
                lack[group] = stop - held > usage.blocks - usage.used + out
            assert any(lack.values())

    @rule(name=st.sampled_from("abcdef"))
    def release(self, name: str) -> None:
        self.cache.release(name)
        self.tokens.pop(name, None)

    @invariant()
    def blocks_have_one_owner_and_none_is_lost(self) -> None:
        for group, usage in self.cache.usage().items() if hasattr(self, "cache") else ():
            held = [b for name in self.tokens for b in self.cache.block_table(name)[group] if b >= 0]
            assert len(held) == len(set(held)) == usage.used
            assert all(b < usage.blocks for b in held)

    @invariant()
    def tables_cover_exactly_what_can_be_seen(self) -> None:
        for name, tokens in self.tokens.items() if hasattr(self, "cache") else ():
            blocks = -(-tokens // self.size)
            table = self.cache.block_table(name)
            assert [b >= 0 for b in table["full"]] == [True] * blocks
            assert [b >= 0 for b in table["window"]] == [i >= self.first[name] for i in range(blocks)]


TestOwnership = Ownership.TestCase
TestOwnership.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
