"""The loop: schedule a batch, run it, take its tokens, turn them into text."""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from xinheng.core.errors import RequestError, XinhengError

from .kv_cache import KVCache
from .request import Request, RequestOutput, SamplingParams, Sequence, Status, TokenOutput
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

    def __contains__(self, request_id: str) -> bool:
        """Whether a request is under way."""
        return request_id in self._live

    def add(self, prompt: Tokens[int], params: SamplingParams | None = None, request_id: str | None = None) -> str:
        """Queue a prompt of token ids and return the id of the request.

        Raises:
            RequestError: the prompt is empty, has impossible ids or does not fit, or the id of the request is in use.
        """
        name = request_id if request_id is not None else self._free_name()
        params = params or SamplingParams()
        request = Request(name, token_ids(prompt, self.runner.info.vocab_size), params, self.stop_ids)
        detokenizer = Detokenizer(self.tokenizer, request.prompt, stop=params.stop)
        self._live[name] = _Live(self.scheduler.add(request), detokenizer, time.perf_counter())
        return name

    def abort(self, request_id: str) -> Delta | None:
        """End a request now; None if it has ended already."""
        output = self.scheduler.abort(request_id)
        return None if output is None else self._delta(output)

    def step(self) -> list[Delta]:
        """Run one batch; one delta per request that got a token.

        When it fails or is interrupted, every request is as it was before, and the next step computes it anew.

        Raises:
            DeviceError: the runner failed.
        """
        if not self._live:
            return []
        try:
            outputs = self._outputs()
        except BaseException:
            self.runner.discard()
            self.scheduler.rewind()
            raise
        return [self._delta(output) for output in outputs]

    def _outputs(self) -> list[TokenOutput]:
        batch = self.scheduler.schedule()
        if batch is None:
            raise XinhengError(
                f"none of {len(self._live)} requests can go on; this is a bug in xinheng, please report it"
            )
        now = time.perf_counter()
        for live in self._live.values():
            if not live.scheduled and live.sequence.status is Status.RUNNING:
                live.scheduled = now
        self.runner.submit(batch)
        return self.scheduler.update(batch, self.runner.collect())

    def _free_name(self) -> str:
        return next(name for name in map("request-{}".format, self._counter) if name not in self._live)

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


def token_ids(values: Iterable[int], vocabulary: int) -> tuple[int, ...]:
    """A prompt as plain integers.

    Raises:
        RequestError: one is no integer or not below `vocabulary`.
    """
    try:
        ids = tuple(map(operator.index, values))
    except TypeError:
        raise RequestError("a prompt is a text, or a list of token ids, which are integers") from None
    outside = next((index for index in ids if not 0 <= index < vocabulary), None)
    if outside is not None:
        raise RequestError(f"token id {outside} is not in the vocabulary of {vocabulary} tokens")
    return ids
