"""A language model for asynchronous programs: a thread runs the engine, any number of tasks read streams."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from xinheng.core.errors import XinhengError

from .engine import Delta
from .llm import LLM, Prompt
from .request import RequestOutput, SamplingParams


class _Stream:
    """The way from the engine's thread to the task that reads one request."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Delta | XinhengError] = asyncio.Queue()

    def put(self, item: Delta | XinhengError) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    async def get(self) -> Delta:
        item = await self._queue.get()
        if isinstance(item, XinhengError):
            raise item
        return item


class AsyncLLM:
    """An `LLM` behind a thread of its own, which nothing else may use from then on."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        llm.tokenizer.prepare()  # no request shall wait for it
        self._wake = threading.Condition()
        self._inbox: list[Callable[[], None]] = []
        self._streams: dict[str, _Stream] = {}
        self._names = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="xinheng-engine", daemon=True)
        self._thread.start()

    async def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncGenerator[Delta, None]:
        """Continue a prompt piece by piece. Cancelling the task, or leaving the loop, ends the request.

        Raises:
            RequestError: the prompt does not fit.
            DeviceError: the runner failed.
            XinhengError: the engine is or was closed.
        """
        ids = self.llm.encode(prompt)
        name, stream = f"stream-{next(self._names)}", _Stream()
        if not self._tell(lambda: self._add(name, ids, params, stream)):
            raise _closed()
        try:
            delta = await stream.get()
            while not delta.finished:
                yield delta
                delta = await stream.get()
            yield delta
        finally:
            self._tell(lambda: self._drop(name))

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> RequestOutput:
        """Continue a prompt and return the whole output; raises what `stream` raises."""
        async with aclosing(self.stream(prompt, params)) as stream:
            async for delta in stream:
                if delta.output is not None:
                    return delta.output
        raise XinhengError("the stream ended without an output; this is a bug in xinheng, please report it")

    def close(self) -> None:
        """Stop the thread and free the model; streams under way end with an error. A second call does nothing."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        self.llm.close()

    def _tell(self, action: Callable[[], None]) -> bool:
        """Have the thread do something before its next step; False if it does nothing any more."""
        with self._wake:
            if not self._closed:
                self._inbox.append(action)
                self._wake.notify()
            return not self._closed

    def _loop(self) -> None:
        while self._take_actions():
            try:
                for delta in self.llm.engine.step():
                    self._pass_on(delta)
            except Exception as error:
                self._fail(_typed(error))
        self._fail(_closed())

    def _pass_on(self, delta: Delta) -> None:
        name = delta.request_id
        if stream := self._streams.pop(name, None) if delta.finished else self._streams.get(name):
            stream.put(delta)

    def _take_actions(self) -> bool:
        """Wait for work and do what the tasks have asked for; False when the engine is to end."""
        with self._wake:
            self._wake.wait_for(lambda: self._inbox or self._closed or self.llm.engine.has_work)
            actions, self._inbox = self._inbox, []
        for action in actions:
            action()
        return not self._closed

    def _add(self, name: str, ids: list[int], params: SamplingParams | None, stream: _Stream) -> None:
        try:
            self.llm.engine.add(ids, params, name)
        except Exception as error:
            stream.put(_typed(error))
        else:
            self._streams[name] = stream

    def _drop(self, name: str) -> None:
        self._streams.pop(name, None)
        self.llm.engine.abort(name)

    def _fail(self, error: XinhengError) -> None:
        """End every request with an error."""
        for name, stream in list(self._streams.items()):
            stream.put(error)
            self._drop(name)


def _closed() -> XinhengError:
    return XinhengError("the engine has been closed")


def _typed(error: Exception) -> XinhengError:
    if isinstance(error, XinhengError):
        return error
    told = XinhengError(
        f"the engine failed: {type(error).__name__}: {error}; this is a bug in xinheng, please report it"
    )
    told.__cause__ = error
    return told
