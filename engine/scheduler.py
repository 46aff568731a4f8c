"""Which tokens of which sequences the next step computes: continuous batching with chunked prefill and preemption.

Each step serves first every sequence that waits for nothing but its next token, then prefills under way, then new ones
in the order they came, all within one budget of tokens. When blocks run out, the sequence admitted last gives its own
back and goes to the front of the queue. So the running ones are always those that came first, and the oldest always
advances.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from xinheng.core.errors import RequestError, SettingsError, XinhengError

from .batch import Batch, BatchResult, GroupBatch, SamplingArrays
from .kv_cache import KVCache
from .request import INT32_MAX, FinishReason, Request, Sequence, Status, StopReason, TokenOutput


@dataclass(slots=True)
class SchedulerStats:
    """Counters since the start; a token counts as recomputed when a preemption made it necessary a second time."""

    num_steps: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    recomputed_tokens: int = 0
    finished: Counter[FinishReason] = field(default_factory=Counter)


@dataclass(slots=True)
class _Plan:
    """The step being put together: how many tokens of each sequence, and how many more fit."""

    budget: int
    chunks: dict[Sequence, int] = field(default_factory=dict)

    def add(self, sequence: Sequence, tokens: int) -> None:
        self.chunks[sequence] = tokens
        self.budget -= tokens

    def drop(self, sequence: Sequence) -> None:
        self.budget += self.chunks.pop(sequence, 0)


class Scheduler:
    """Turns requests into batches and sampled tokens into outputs; owns the block tables, touches no device.

    max_num_seqs: sequences that run at once; max_num_batched_tokens: tokens of one step; max_model_len: prompt and
    output together; prefill_chunk: tokens of one sequence in one step (none: the whole budget). SettingsError if they
    do not fit each other.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        prefill_chunk: int | None = None,
    ) -> None:
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise SettingsError(
                f"max_num_batched_tokens is {max_num_batched_tokens} and max_num_seqs {max_num_seqs}; every sequence "
                f"needs one token per step, so raise the first or lower the second (at least 1)"
            )
        if max_model_len < 2 or (prefill_chunk is not None and prefill_chunk < 1):
            raise SettingsError(
                f"max_model_len is {max_model_len} and prefill_chunk {prefill_chunk}; they must be at least 2 and 1"
            )
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.chunk = min(prefill_chunk or max_num_batched_tokens, max_num_batched_tokens)
        self.stats = SchedulerStats()
        self._longest = cache.longest(max_model_len)
        self._waiting: deque[Sequence] = deque()
        self._running: dict[Sequence, None] = {}  # in order of admission, which is the order of arrival
        self._sequences: dict[str, Sequence] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, request: Request) -> Sequence:
        """Queue a request; `max_tokens` of the sequence returned is clamped to the room left (`clamped` says so).

        RequestError if the id is taken or the prompt is empty, has impossible ids, leaves no room in the context or can
        never fit in the cache.
        """
        length = len(request.prompt)
        if request.id in self._sequences:
            raise RequestError(f"request id {request.id!r} is in use; choose another or wait until it has finished")
        if not length:
            raise RequestError("the prompt is empty; give at least one token")
        if min(request.prompt) < 0 or max(request.prompt) > INT32_MAX:
            raise RequestError("the prompt has a token id below 0 or above 2147483647; ids index the vocabulary")
        if length >= self.max_model_len:
            raise RequestError(
                f"the prompt has {length} tokens and the context of this model {self.max_model_len}, one of which must "
                f"be left for the answer; shorten the prompt to {self.max_model_len - 1} tokens"
            )
        if length > self._longest:
            raise RequestError(
                f"the prompt has {length} tokens and the whole key-value cache holds {self._longest}; shorten the "
                f"prompt or give the cache more memory"
            )
        # the last token is never fed back, so it needs a place in the context but none in the cache
        room = min(self.max_model_len, self._longest + 1) - length
        asked = request.params.max_tokens
        sequence = Sequence(request, room if asked is None else min(asked, room))
        self._sequences[request.id] = sequence
        self._waiting.append(sequence)
        return sequence

    def abort(self, request_id: str) -> TokenOutput | None:
        """End a request now, wherever it is, and free its blocks; None if it is unknown or has finished already."""
        return self.finish(request_id, "abort")

    def finish(self, request_id: str, reason: FinishReason, stop_reason: StopReason = None) -> TokenOutput | None:
        """End a request for a reason found outside, such as a stop string; None if it is unknown or has finished."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        sequence.finish_reason, sequence.stop_reason = reason, stop_reason
        self._retire(sequence)
        return TokenOutput(request_id, (), reason, stop_reason)

    def rewind(self) -> None:
        """Compute every running sequence anew from its tokens: a step failed, and what the cache holds is unknown."""
        for sequence in reversed(list(self._running)):
            sequence.step = -1
            self._requeue(sequence)

    def schedule(self) -> Batch | None:
        """The next step, or None when there is nothing to compute (no work, or all of it waits for `update`)."""
        plan = _Plan(self.max_num_batched_tokens)
        prefills = []
        for sequence in list(self._running):
            remaining = len(sequence.tokens) - sequence.computed
            if remaining > 1:
                prefills.append(sequence)
            elif remaining == 1:
                self._serve(sequence, 1, plan)
        for sequence in prefills:
            self._serve(sequence, len(sequence.tokens) - sequence.computed, plan)
        self._admit(plan)
        return self._batch(plan.chunks) if plan.chunks else None

    def update(self, batch: Batch, result: BatchResult) -> list[TokenOutput]:
        """Take the sampled tokens of a batch; one output per row whose request still wants it.

        Rows of sequences that ended since `schedule` are dropped. XinhengError if the result answers another batch.
        """
        if batch.request_ids != result.request_ids or len(result.token_ids) != len(batch.request_ids):
            raise XinhengError(f"the result does not answer batch {batch.step}: its rows differ from those asked for")
        outputs = []
        for request_id, token in zip(batch.request_ids, result.token_ids.tolist(), strict=True):
            sequence = self._sequences.get(request_id)
            if sequence is None or sequence.step != batch.step:
                continue
            sequence.step = -1
            sequence.append(token)
            outputs.append(TokenOutput(request_id, (token,), sequence.finish_reason, sequence.stop_reason))
            if sequence.finish_reason is not None:
                self._retire(sequence)
        self.stats.generation_tokens += len(outputs)
        return outputs

    def _serve(self, sequence: Sequence, tokens: int, plan: _Plan) -> None:
        """Plan up to `tokens` of a running sequence, preempting those admitted after it if blocks lack."""
        tokens = min(tokens, plan.budget, self.chunk)
        if sequence.status is not Status.RUNNING or tokens == 0:
            return
        while not self.cache.allocate(sequence.id, sequence.computed + tokens):
            last = next(reversed(self._running))
            if last is not sequence:
                plan.drop(last)
                self._preempt(last)
            elif tokens > 1:
                tokens //= 2
            elif len(self._running) > 1:
                return  # it keeps its blocks and waits for an older sequence to finish
            else:
                raise XinhengError(
                    f"request {sequence.id!r} has the cache for itself and finds no block for token "
                    f"{sequence.computed}; this is a bug in xinheng, please report it with the engine settings"
                )
        plan.add(sequence, tokens)

    def _preempt(self, sequence: Sequence) -> None:
        self._requeue(sequence)
        self.stats.num_preemptions += 1

    def _requeue(self, sequence: Sequence) -> None:
        self.cache.release(sequence.id)
        del self._running[sequence]
        sequence.computed, sequence.status = 0, Status.WAITING
        self._waiting.appendleft(sequence)

    def _admit(self, plan: _Plan) -> None:
        """Start waiting sequences in order, while all known tokens of each fit and running ones can still grow."""
        if not self._waiting or not plan.budget:
            return
        growing = {s.id: len(s.tokens) for s in self._running if s.computed + plan.chunks.get(s, 0) < len(s.tokens)}
        while self._waiting and plan.budget and len(self._running) < self.max_num_seqs:
            sequence, spare = self._waiting[0], len(self._running)
            if spare and not self.cache.has_room(len(sequence.tokens), self.chunk, spare, growing):
                return
            self._waiting.popleft()
            self._running[sequence] = None
            sequence.status = Status.RUNNING
            self._serve(sequence, len(sequence.tokens), plan)
            growing[sequence.id] = len(sequence.tokens)

    def _retire(self, sequence: Sequence) -> None:
        if sequence.status is Status.WAITING:
            self._waiting.remove(sequence)
        else:
            del self._running[sequence]
        del self._sequences[sequence.id]
        self.cache.release(sequence.id)
        sequence.status = Status.FINISHED
        if sequence.finish_reason is not None:
            self.stats.finished[sequence.finish_reason] += 1

    def _batch(self, chunks: dict[Sequence, int]) -> Batch:
        """Flatten the planned chunks into arrays and count their tokens as computed."""
        self.stats.num_steps += 1
        tokens: list[int] = []
        ends, lengths, wanted, rows = [0], [], [], []
        for sequence, count in chunks.items():
            stop = sequence.computed + count
            if count == 1:
                tokens.append(sequence.tokens[stop - 1])
            else:
                tokens += sequence.tokens[stop - count : stop]
            ends.append(len(tokens))
            lengths.append(stop)
            if stop == len(sequence.tokens):
                wanted.append(sequence)
                rows.append(len(tokens) - 1)
                sequence.step = self.stats.num_steps
            self._advance(sequence, stop)
        query_start = np.array(ends, np.int32)
        seq_lens = np.array(lengths, np.int32)
        counts = np.diff(query_start)
        positions = np.arange(len(tokens), dtype=np.int32) + np.repeat(seq_lens - query_start[1:], counts)
        table_rows = self.cache.rows(sequence.id for sequence in chunks)
        token_rows = np.repeat(table_rows, counts)
        longest = max(lengths)
        return Batch(
            tokens=np.array(tokens, np.int32),
            positions=positions,
            query_start=query_start,
            seq_lens=seq_lens,
            groups={
                name: GroupBatch(group.slots(token_rows, positions), group.block_table(table_rows, longest))
                for name, group in self.cache.groups.items()
            },
            logit_rows=np.array(rows, np.int32),
            sampling=SamplingArrays.of(wanted),
            request_ids=tuple(sequence.id for sequence in wanted),
            step=self.stats.num_steps,
        )

    def _advance(self, sequence: Sequence, stop: int) -> None:
        start, sequence.computed = sequence.computed, stop
        again = min(stop, sequence.high_water)
        if start < again:
            self.stats.recomputed_tokens += again - start
        first_time = max(start, sequence.high_water)
        if first_time < len(sequence.request.prompt):
            self.stats.prompt_tokens += min(stop, len(sequence.request.prompt)) - first_time
        sequence.high_water = max(sequence.high_water, stop)
