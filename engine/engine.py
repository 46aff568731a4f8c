"""The loop: schedule a batch, run it, take its tokens, turn them into text."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from xinheng.core.errors import RequestError

from .kv_cache import KVCache
from .request import Request, RequestOutput, SamplingParams, Sequence, TokenOutput
from .runner_handle import RunnerHandle
from .scheduler import Scheduler
from .settings import EngineSettings
from .tokenizer import Detokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of a finished request: waiting, until its first token (waiting included), and from there to its end."""

    queued: float
    first_token: float
    decode: float


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one request: new ids, the text that is certain now, and when it ended the whole output."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    output: RequestOutput | None = None
    timings: Timings | None = None

    @property
    def finished(self) -> bool:
        return self.output is not None


@dataclass(slots=True)
class _Live:
    """A request under way."""

    sequence: Sequence
    detokenizer: Detokenizer
    arrived: float
    scheduled: float = 0.0
    first: float = 0.0


class Engine:
    """Continuous batching over one runner. Not thread-safe: one thread adds, steps and aborts."""

    def __init__(self, runner: RunnerHandle, tokenizer: Tokenizer, settings: EngineSettings) -> None:
        info = runner.info
        self.runner, self.tokenizer = runner, tokenizer
        cache = KVCache(info.groups, info.blocks, info.block_size)
        self.scheduler = Scheduler(
            cache,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=info.max_model_len,
            prefill_chunk=settings.prefill_chunk,
        )
        self.stop_ids = frozenset(info.stop_ids) | tokenizer.stop_ids
        self._live: dict[str, _Live] = {}
        self._counter = itertools.count()

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    def add(self, prompt: Tokens[int], params: SamplingParams | None = None, request_id: str | None = None) -> str:
        """Queue a prompt of token ids and return the id of the request.

        Raises:
            RequestError: the prompt is empty or does not fit, or the id is in use.
        """
        name = request_id if request_id is not None else f"request-{next(self._counter)}"
        params = params or SamplingParams()
        outside = next((t for t in prompt if not 0 <= t < self.runner.info.vocab_size), None)
        if outside is not None:
            raise RequestError(f"token id {outside} is not in the vocabulary of {self.runner.info.vocab_size} tokens")
        request = Request(name, tuple(prompt), params, self.stop_ids)
        detokenizer = Detokenizer(self.tokenizer, request.prompt, stop=params.stop)
        self._live[name] = _Live(self.scheduler.add(request), detokenizer, time.perf_counter())
        return name

    def abort(self, request_id: str) -> Delta | None:
        """End a request now; None if it has ended already."""
        output = self.scheduler.abort(request_id)
        return None if output is None else self._delta(output)

    def step(self) -> list[Delta]:
        """Run one batch; one delta per request that got a token."""
        batch = self.scheduler.schedule()
        if batch is None:
            return []
        now = time.perf_counter()
        for name in batch.request_ids:
            live = self._live[name]
            live.scheduled = live.scheduled or now
        self.runner.submit(batch)
        result = self.runner.collect()
        return [self._delta(output) for output in self.scheduler.update(batch, result)]

    def _delta(self, output: TokenOutput) -> Delta:
        live = self._live[output.request_id]
        now = time.perf_counter()
        live.first = live.first or now
        finished = output
        shown = [t for t in output.token_ids if not (output.finish_reason == "stop" and t in live.sequence.stops)]
        text = live.detokenizer.push(shown)
        if live.detokenizer.stopped is not None:
            ended = self.scheduler.finish(output.request_id, "stop", live.detokenizer.stopped)
            if ended is None:
                live.sequence.finish_reason, live.sequence.stop_reason = "stop", live.detokenizer.stopped
            finished = TokenOutput(output.request_id, output.token_ids, "stop", live.detokenizer.stopped)
        if not finished.finished:
            return Delta(output.request_id, output.token_ids, text)
        text += live.detokenizer.finish()
        del self._live[output.request_id]
        timings = Timings(max(live.scheduled - live.arrived, 0.0), live.first - live.arrived, now - live.first)
        whole = RequestOutput.of(live.sequence, live.detokenizer.text)
        return Delta(output.request_id, output.token_ids, text, whole, timings)

    def close(self) -> None:
        """End the runner."""
        self.runner.close()
