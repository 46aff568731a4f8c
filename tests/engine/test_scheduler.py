"""The scheduler against a model in miniature that reads its own cache: every misplaced token changes what it says."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from xinheng.core.errors import RequestError, SettingsError, XinhengError
from xinheng.core.ir.types import paged_kv
from xinheng.engine.batch import Batch, BatchResult
from xinheng.engine.kv_cache import CacheGroup, KVCache
from xinheng.engine.request import Request, SamplingParams, Sequence, Status
from xinheng.engine.scheduler import Scheduler

KV = paged_kv(1, 4, 4, "float32")
VOCABULARY = 50


def digest(tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> int:
    return int(((tokens + 1) * (positions * positions + 3 * positions + 7)).sum() % 1_000_003)


def sample(digests: list[int], temperature: float, seed: tuple[int, int], counter: int) -> int:
    mixed = hash((*digests, *((seed, counter) if temperature else ())))
    return mixed % VOCABULARY


class Model:
    """Keeps (token, position) in a slot memory per group and makes the next token from what the block table shows."""

    def __init__(self, cache: KVCache) -> None:
        self.size = cache.block_size
        self.windows = {name: group.group for name, group in cache.groups.items()}
        self.memory = {
            name: np.full((group.pool.blocks * self.size, 2), -1, np.int64) for name, group in cache.groups.items()
        }

    def run(self, batch: Batch) -> BatchResult:
        for name, group in batch.groups.items():
            assert len(set(group.slots.tolist())) == batch.num_tokens, "two tokens in one slot"
            assert group.slots.min() >= 0
            self.memory[name][group.slots] = np.stack([batch.tokens, batch.positions], axis=1)
        wanted = {int(row): r for r, row in enumerate(batch.logit_rows)}
        tokens = np.full(len(wanted), -1, np.int32)
        for s in range(batch.num_sequences):
            start, stop = batch.query_start[s : s + 2].tolist()
            length = int(batch.seq_lens[s])
            for group in batch.groups.values():
                assert (group.block_table[s, -(-length // self.size) :] == -1).all()
            assert batch.positions[start:stop].tolist() == list(range(length - (stop - start), length))
            digests = [self.read(batch, name, s, int(batch.positions[start]), length) for name in batch.groups]
            if stop - 1 in wanted:
                r, rows = wanted[stop - 1], batch.sampling
                seed = (int(rows.seed[r, 0]), int(rows.seed[r, 1]))
                tokens[r] = sample(digests, float(rows.temperature[r]), seed, int(rows.counter[r]))
        assert (tokens >= 0).all(), "a logit row is not the last of a sequence"
        return BatchResult(batch.request_ids, tokens)

    def read(self, batch: Batch, name: str, s: int, query: int, length: int) -> int:
        """Check all that queries query..length can see, and digest what the last one sees."""
        positions = np.arange(self.windows[name].first_visible(query), length)
        blocks = batch.groups[name].block_table[s][positions // self.size]
        assert (blocks >= 0).all(), "a visible block was freed"
        seen = self.memory[name][blocks * self.size + positions % self.size]
        assert seen[:, 1].tolist() == positions.tolist()
        visible = positions >= self.windows[name].first_visible(length - 1)
        return digest(seen[visible, 0], positions[visible])


def expected(sequence: Sequence, cache: KVCache) -> list[int]:
    """What the model says to this request when it has everything for itself and no cache."""
    tokens = list(sequence.request.prompt)
    params = sequence.request.params
    while True:
        query = len(tokens) - 1
        digests = []
        for group in cache.groups.values():
            positions = np.arange(group.group.first_visible(query), query + 1)
            digests.append(digest(np.array(tokens)[positions], positions))
        count = len(tokens) - len(sequence.request.prompt)
        tokens.append(sample(digests, params.temperature, sequence.seed, count))
        stopped = tokens[-1] in sequence.stops and count + 1 > params.min_tokens
        if stopped or count + 1 == sequence.max_tokens:
            return tokens[len(sequence.request.prompt) :]


def build(
    blocks: Mapping[str, int], *, size: int = 4, windows: Mapping[str, int | None] | None = None, **limits: Any
) -> tuple[Scheduler, Model]:
    windows = windows or {}
    cache = KVCache([CacheGroup(name, (0,), KV, windows.get(name)) for name in blocks], blocks, size)
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256} | limits
    return Scheduler(cache, **settings), Model(cache)


def request(name: str, length: int, stop_ids: frozenset[int] = frozenset(), **params: Any) -> Request:
    prompt = tuple((ord(name[0]) * 7 + i * i) % VOCABULARY for i in range(length))
    return Request(name, prompt, SamplingParams.parse(**{"temperature": 0} | params), stop_ids)


def drain(scheduler: Scheduler, model: Model) -> dict[str, list[int]]:
    """Run until nothing is left; all tokens by request id."""
    outputs: dict[str, list[int]] = {}
    for _ in range(5000):
        if not scheduler.has_work:
            return outputs
        batch = scheduler.schedule()
        assert batch is not None, "work but nothing to compute"
        for output in scheduler.update(batch, model.run(batch)):
            outputs.setdefault(output.request_id, []).extend(output.token_ids)
    raise AssertionError("requests do not finish")


def held(scheduler: Scheduler) -> int:
    return sum(usage.used for usage in scheduler.cache.usage().values())


# admission


def test_refused_prompts_name_both_numbers() -> None:
    scheduler, _ = build({"full": 8}, max_model_len=48)
    with pytest.raises(RequestError, match=r"prompt has 48 tokens and the context of this model 48"):
        scheduler.add(request("a", 48))
    with pytest.raises(RequestError, match=r"prompt has 33 tokens and the whole key-value cache holds 32"):
        scheduler.add(request("a", 33))
    with pytest.raises(RequestError, match="empty"):
        scheduler.add(request("a", 0))
    for token in (-1, 2**31):
        with pytest.raises(RequestError, match="token id"):
            scheduler.add(Request("a", (1, token)))
    assert not scheduler.has_work and scheduler.num_waiting == 0
    scheduler.add(request("a", 5))
    with pytest.raises(RequestError, match="'a' is in use"):
        scheduler.add(request("a", 5))


def test_a_prompt_larger_than_the_pool_blocks_nobody() -> None:
    scheduler, model = build({"full": 8}, size=1)
    with pytest.raises(RequestError, match=r"9 tokens.*holds 8"):
        scheduler.add(request("long", 9))
    scheduler.add(request("short", 2, max_tokens=3))
    assert len(drain(scheduler, model)["short"]) == 3


def test_max_tokens_is_clamped_to_the_context_and_says_so() -> None:
    scheduler, model = build({"full": 100}, max_model_len=16)
    sequence = scheduler.add(request("a", 10, max_tokens=10**9))
    assert sequence.max_tokens == 6 and sequence.clamped
    assert len(drain(scheduler, model)["a"]) == 6 and sequence.finish_reason == "length"
    with pytest.raises(RequestError, match=r"17.*16"):
        scheduler.add(request("b", 17))
    assert scheduler.add(request("c", 15)).max_tokens == 1
    assert not scheduler.add(request("d", 10, max_tokens=6)).clamped


def test_max_tokens_is_clamped_to_the_pool() -> None:
    scheduler, model = build({"full": 4}, size=4)
    sequence = scheduler.add(request("a", 14, max_tokens=50))
    assert sequence.clamped and sequence.max_tokens == 3  # the third is never fed back
    assert len(drain(scheduler, model)["a"]) == 3 and sequence.finish_reason == "length"


def test_window_groups_admit_what_outgrows_their_pool() -> None:
    scheduler, model = build({"window": 4}, windows={"window": 8}, size=4, max_model_len=200, prefill_chunk=4)
    sequence = scheduler.add(request("a", 100, max_tokens=40))
    assert not sequence.clamped
    assert drain(scheduler, model)["a"] == expected(sequence, scheduler.cache)
    scheduler, model = build({"window": 3}, windows={"window": 8}, size=4, max_model_len=200)
    sequence = scheduler.add(request("a", 100, max_tokens=40))  # chunks shrink to what three blocks allow
    assert drain(scheduler, model)["a"] == expected(sequence, scheduler.cache)
    scheduler, model = build({"window": 2}, windows={"window": 8}, size=4, max_model_len=200)
    with pytest.raises(RequestError, match=r"9 tokens.*holds 8"):
        scheduler.add(request("a", 9))


def test_impossible_limits() -> None:
    impossible: list[dict[str, Any]] = [
        {"max_num_seqs": 65},
        {"max_num_seqs": 0},
        {"max_model_len": 1},
        {"prefill_chunk": 0},
    ]
    for limits in impossible:
        with pytest.raises(SettingsError):
            build({"full": 8}, **limits)


# one step


def test_prefill_then_decode_batches() -> None:
    scheduler, model = build({"full": 20}, max_num_batched_tokens=8)
    scheduler.add(request("a", 5, max_tokens=4))
    scheduler.add(request("b", 6, max_tokens=4))
    batch = scheduler.schedule()
    assert batch is not None
    assert batch.query_start.tolist() == [0, 5, 8] and batch.seq_lens.tolist() == [5, 3]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert batch.logit_rows.tolist() == [4] and batch.request_ids == ("a",) and batch.all_greedy
    assert batch.groups["full"].block_table.shape == (2, 2) and batch.groups["full"].block_table[1, 1] == -1
    for array in (batch.tokens, batch.positions, batch.query_start, batch.seq_lens, batch.logit_rows):
        assert array.dtype == np.int32
    scheduler.update(batch, model.run(batch))
    batch = scheduler.schedule()
    assert batch is not None
    assert batch.query_start.tolist() == [0, 1, 4] and batch.seq_lens.tolist() == [6, 6]
    assert batch.logit_rows.tolist() == [0, 3] and batch.request_ids == ("a", "b")
    assert batch.sampling.counter.tolist() == [1, 0]


def test_nothing_to_do_gives_no_batch() -> None:
    scheduler, model = build({"full": 8})
    assert scheduler.schedule() is None and not scheduler.has_work
    scheduler.add(request("a", 4, max_tokens=2))
    batch = scheduler.schedule()
    assert batch is not None and scheduler.schedule() is None  # the next token is not known yet
    result = model.run(batch)
    assert len(scheduler.update(batch, result)) == 1 and scheduler.update(batch, result) == []
    assert scheduler.schedule() is not None


def test_result_of_another_batch_is_refused() -> None:
    scheduler, _ = build({"full": 8})
    scheduler.add(request("a", 4))
    batch = scheduler.schedule()
    assert batch is not None
    with pytest.raises(XinhengError, match="does not answer batch 1"):
        scheduler.update(batch, BatchResult(("b",), np.array([1], np.int32)))
    with pytest.raises(XinhengError, match="does not answer"):
        scheduler.update(batch, BatchResult(("a",), np.array([1, 2], np.int32)))


def test_running_streams_do_not_wait_for_a_long_prompt() -> None:
    scheduler, model = build({"full": 2000}, max_num_batched_tokens=256, max_model_len=6000, prefill_chunk=128)
    scheduler.add(request("stream", 10, max_tokens=100))
    for _ in range(5):
        batch = scheduler.schedule()
        assert batch is not None
        scheduler.update(batch, model.run(batch))
    scheduler.add(request("long", 4096, max_tokens=2))
    scheduler.add(request("next", 8, max_tokens=4))
    steps: dict[str, list[int]] = {}
    for step in range(80):
        batch = scheduler.schedule()
        assert batch is not None and batch.num_tokens <= 256
        assert batch.query_start[1] == 1, "the stream comes first"
        counts = np.diff(batch.query_start)
        assert counts.max() <= 128 and (np.sort(counts)[: (counts == 1).sum()] == counts[: (counts == 1).sum()]).all()
        for output in scheduler.update(batch, model.run(batch)):
            steps.setdefault(output.request_id, []).append(step)
    assert np.diff(steps["stream"]).max() == 1
    assert steps["next"] == [0, 1, 2, 3], "a short prompt behind a long one uses the rest of the budget"
    assert steps["long"] == [31, 32]


def test_first_come_first_served() -> None:
    scheduler, model = build({"full": 100}, max_num_seqs=2, max_num_batched_tokens=16)
    for name in "abcd":
        scheduler.add(request(name, 20, max_tokens=3))
    assert list(drain(scheduler, model)) == list("abcd")


# ending


def test_stop_ids_and_reasons() -> None:
    scheduler, model = build({"full": 20})
    free = scheduler.add(request("a", 6, max_tokens=8))
    tokens = drain(scheduler, model)["a"]
    assert free.finish_reason == "length"
    cut = tokens.index(tokens[3])
    eos = scheduler.add(request("a", 6, frozenset({tokens[3]}), max_tokens=8))
    assert drain(scheduler, model)["a"] == tokens[: cut + 1]
    assert (eos.finish_reason, eos.stop_reason) == ("stop", None)
    later = scheduler.add(request("a", 6, stop_token_ids=[tokens[3]], max_tokens=8, min_tokens=8))
    assert drain(scheduler, model)["a"] == tokens and later.finish_reason == "length"
    ignored = scheduler.add(request("a", 6, frozenset(tokens), ignore_eos=True, max_tokens=8))
    assert drain(scheduler, model)["a"] == tokens and ignored.finish_reason == "length"
    assert scheduler.stats.finished == {"length": 3, "stop": 1} and held(scheduler) == 0


def test_abort_frees_blocks_at_once_and_drops_late_tokens() -> None:
    scheduler, model = build({"full": 20}, max_num_seqs=1)
    scheduler.add(request("a", 6))
    scheduler.add(request("b", 6))
    batch = scheduler.schedule()
    assert batch is not None and held(scheduler) > 0
    output = scheduler.abort("a")
    assert output is not None and output.finish_reason == "abort" and output.token_ids == () and held(scheduler) == 0
    again = scheduler.add(request("a", 6, max_tokens=3))  # the same id, while the old row is still on its way
    assert scheduler.update(batch, model.run(batch)) == [] and again.num_outputs == 0
    assert scheduler.abort("b") is not None and scheduler.abort("b") is None and scheduler.abort("zzz") is None
    assert drain(scheduler, model)["a"] == expected(again, scheduler.cache)


def test_finish_from_outside() -> None:
    scheduler, model = build({"full": 20})
    sequence = scheduler.add(request("a", 6))
    batch = scheduler.schedule()
    assert batch is not None
    scheduler.update(batch, model.run(batch))
    output = scheduler.finish("a", "stop", "\n\n")
    assert output is not None and (output.finish_reason, output.stop_reason) == ("stop", "\n\n")
    assert sequence.stop_reason == "\n\n" and sequence.status is Status.FINISHED
    assert not scheduler.has_work and held(scheduler) == 0 and scheduler.finish("a", "stop") is None


# preemption


def test_preemption_recomputes_and_spares_the_oldest() -> None:
    scheduler, model = build({"full": 12}, size=2)
    sequences = [scheduler.add(request(name, 5, max_tokens=15)) for name in "abcd"]
    oldest, most = sequences[0], 0
    outputs: dict[str, list[int]] = {name: [] for name in "abcd"}
    while scheduler.has_work:
        batch = scheduler.schedule()
        assert batch is not None
        assert oldest.computed >= most, "the oldest sequence lost its blocks"
        most = oldest.computed
        order = [s.status for s in sequences if s.status is not Status.FINISHED]
        assert order == sorted(order, key=[Status.RUNNING, Status.WAITING].index), "a later request overtook"
        for output in scheduler.update(batch, model.run(batch)):
            outputs[output.request_id] += output.token_ids
    assert scheduler.stats.num_preemptions > 0 and scheduler.stats.recomputed_tokens > 0
    assert scheduler.stats.prompt_tokens == 20 and scheduler.stats.generation_tokens == 60
    assert [outputs[s.id] for s in sequences] == [expected(s, scheduler.cache) for s in sequences]
    assert held(scheduler) == 0


def test_a_sequence_starts_only_when_all_of_it_fits_and_the_others_can_grow() -> None:
    for length, blocks in ((24, 10), (20, 10)):
        scheduler, model = build({"full": blocks}, prefill_chunk=4)
        scheduler.add(request("a", 20, max_tokens=4))
        later = scheduler.add(request("b", length, max_tokens=4))
        for _ in range(8):  # five steps of prefill, three of decode
            assert later.status is Status.WAITING
            batch = scheduler.schedule()
            assert batch is not None
            scheduler.update(batch, model.run(batch))
        assert drain(scheduler, model)["b"] == expected(later, scheduler.cache)
        assert scheduler.stats.num_preemptions == 0


def test_the_youngest_takes_what_is_left_and_then_waits() -> None:
    scheduler, model = build({"full": 6}, size=4, prefill_chunk=8)
    scheduler.add(request("a", 3, max_tokens=14))
    young = scheduler.add(request("b", 16, max_tokens=2))
    computed = []
    while young.num_outputs == 0:
        batch = scheduler.schedule()
        assert batch is not None
        scheduler.update(batch, model.run(batch))
        computed.append(young.computed)
    assert computed == [8, 16]
    while scheduler.has_work:
        batch = scheduler.schedule()
        assert batch is not None
        scheduler.update(batch, model.run(batch))
    assert young.finish_reason == "length"


def test_seeded_requests_do_not_depend_on_mates_or_preemption() -> None:
    wanted = {name: request(name, 7, temperature=1, seed=i, max_tokens=20) for i, name in enumerate("abc")}
    alone = {}
    for name, one in wanted.items():
        scheduler, model = build({"full": 100})
        scheduler.add(one)
        alone[name] = drain(scheduler, model)[name]
    for blocks in (100, 14):
        scheduler, model = build({"full": blocks}, size=2, max_num_batched_tokens=9)
        for one in wanted.values():
            scheduler.add(one)
            scheduler.add(request(f"x{one.id}", 3, temperature=1, max_tokens=20))  # a mate without a seed
        together = drain(scheduler, model)
        assert (scheduler.stats.num_preemptions > 0) == (blocks == 14)
        assert {name: together[name] for name in "abc"} == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == 3


class Load(RuleBasedStateMachine):
    """Random requests, aborts and late results on a small cache; whatever happens, each answer is the lonely one."""

    @initialize(
        size=st.integers(1, 5),
        blocks=st.integers(2, 24),
        window=st.integers(1, 12),
        window_blocks=st.integers(2, 24),
        seqs=st.integers(1, 5),
        spare=st.integers(0, 20),
        chunk=st.none() | st.integers(1, 12),
        ahead=st.integers(1, 3),
        crowd=st.lists(st.tuples(st.integers(1, 8), st.integers(8, 30)), max_size=8),
    )
    def start(
        self,
        size: int,
        blocks: int,
        window: int,
        window_blocks: int,
        seqs: int,
        spare: int,
        chunk: int | None,
        ahead: int,
        crowd: list[tuple[int, int]],
    ) -> None:
        self.ahead = ahead
        self.budget = seqs + spare
        self.scheduler, self.model = build(
            {"full": blocks, "window": window_blocks},
            size=size,
            windows={"window": window},
            max_num_seqs=seqs,
            max_num_batched_tokens=self.budget,
            max_model_len=60,
            prefill_chunk=chunk,
        )
        self.chunk = chunk or self.budget
        self.live: dict[str, tuple[Sequence, list[int], list[int]]] = {}
        self.flight: deque[tuple[Batch, BatchResult]] = deque()
        for name, (length, most) in zip("abcdefgh", crowd, strict=False):
            self.add(name, length, most, len(name), 0, [])

    @rule(
        name=st.sampled_from("abcdefgh"),
        length=st.integers(0, 40),
        most=st.none() | st.integers(1, 20),
        seed=st.none() | st.integers(0, 9),
        least=st.integers(0, 3),
        stop=st.lists(st.integers(0, VOCABULARY - 1), max_size=8),
    )
    def add(self, name: str, length: int, most: int | None, seed: int | None, least: int, stop: list[int]) -> None:
        least = min(least, most or least)
        temperature = 0 if seed is None else 1
        params = {"max_tokens": most, "min_tokens": least, "seed": seed, "temperature": temperature}
        one = request(name, length, frozenset(stop), **params)
        try:
            sequence = self.scheduler.add(one)
        except RequestError:
            assert name in self.live or not length or not self.scheduler.cache.capacity(length)
            return
        self.live[name] = (sequence, expected(sequence, self.scheduler.cache), [])

    @rule()
    def schedule(self) -> None:
        batch = self.scheduler.schedule()
        if batch is None:
            assert not self.live or self.flight
            return
        assert batch.num_tokens <= self.budget and np.diff(batch.query_start).max() <= self.chunk
        assert batch.num_sequences <= self.scheduler.max_num_seqs
        batch = Batch.from_bytes(batch.to_bytes())
        self.flight.append((batch, self.model.run(batch)))
        if len(self.flight) >= self.ahead:
            self.take()

    @precondition(lambda self: self.flight)
    @rule()
    def take(self) -> None:
        for output in self.scheduler.update(*self.flight.popleft()):
            sequence, want, got = self.live[output.request_id]
            got += output.token_ids
            assert got == want[: len(got)]
            assert output.finished == (got == want)
            if output.finished:
                assert output.finish_reason == sequence.finish_reason
                del self.live[output.request_id]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stop=st.booleans())
    def end(self, data: st.DataObject, stop: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        output = self.scheduler.finish(name, "stop", "text") if stop else self.scheduler.abort(name)
        assert output is not None and output.finished
        del self.live[name]

    @invariant()
    def every_block_has_one_owner(self) -> None:
        if not hasattr(self, "live"):
            return
        running = [s for s, _, _ in self.live.values() if s.status is Status.RUNNING]
        assert len(running) == self.scheduler.num_running
        assert len(self.live) - len(running) == self.scheduler.num_waiting
        for name, usage in self.scheduler.cache.usage().items():
            tables = [self.scheduler.cache.block_table(s.id)[name] for s in running if s.computed]
            blocks = [block for table in tables for block in table if block >= 0]
            assert len(blocks) == len(set(blocks)) == usage.used

    @invariant()
    def nobody_overtakes(self) -> None:
        waiting = False
        for sequence, _, _ in self.live.values() if hasattr(self, "live") else ():
            assert not (waiting and sequence.status is Status.RUNNING)
            waiting = sequence.status is Status.WAITING

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        for _ in range(3000):
            if not self.live:
                break
            self.schedule()
            if self.flight:
                self.take()
        assert not self.live and not self.scheduler.has_work
        assert held(self.scheduler) == 0


TestLoad = Load.TestCase
TestLoad.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
