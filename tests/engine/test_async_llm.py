"""Streams of many tasks over one engine: as alone, ended by whoever leaves, and never left waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from xinheng.core.errors import DeviceError, RequestError, XinhengError
from xinheng.engine import LLM, AsyncLLM, Delta, RequestOutput, SamplingParams

from .tiny import greedy, open_llm, text_ids

T = TypeVar("T")


@pytest.fixture
def llm(llama_folder: Path) -> Iterator[LLM]:
    with open_llm(llama_folder, "cpu:0", max_num_seqs=4) as made:
        yield made


@pytest.fixture
def engine(llm: LLM) -> Iterator[AsyncLLM]:
    made = AsyncLLM(llm)
    yield made
    made.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; whatever hangs fails after ten seconds."""

    async def limited() -> T:
        return await asyncio.wait_for(work, 10)

    return asyncio.run(limited())


def idle(engine: AsyncLLM, aborted: int | None = None) -> bool:
    """Whether soon no request is left and no block is held, and so many requests have been aborted."""
    scheduler = engine.llm.engine.scheduler
    for _ in range(300):
        empty = not engine.llm.engine.has_work and not engine._streams
        free = all(group.used == 0 for group in scheduler.cache.usage().values())
        if empty and free and aborted in (None, scheduler.stats.finished["abort"]):
            return True
        time.sleep(0.01)
    return False


async def collect(engine: AsyncLLM, prompt: Any, params: SamplingParams) -> list[Delta]:
    return [delta async for delta in engine.stream(prompt, params)]


def test_many_streams_give_what_each_gives_alone(llama_folder: Path, engine: AsyncLLM) -> None:
    prompts = [text_ids(3 + i % 9, i) for i in range(32)]
    params = [SamplingParams(max_tokens=3 + i % 7, seed=i, ignore_eos=True) for i in range(32)]
    with open_llm(llama_folder, "cpu:0") as alone:
        want = [output.token_ids for output in alone.generate(prompts, params)]

    async def all_at_once() -> list[list[Delta]]:
        return await asyncio.gather(*(collect(engine, p, s) for p, s in zip(prompts, params, strict=True)))

    streams = run(all_at_once())
    for deltas, ids in zip(streams, want, strict=True):
        output = deltas[-1].output
        assert output is not None
        assert output.token_ids == ids == tuple(t for delta in deltas for t in delta.token_ids)
        assert output.text == "".join(delta.text for delta in deltas)
    assert idle(engine)


def test_generate_gives_the_whole_output(engine: AsyncLLM) -> None:
    output = run(engine.generate("the moon", greedy(5)))
    assert len(output.token_ids) == 5
    assert idle(engine)


def test_leaving_or_cancelling_a_stream_ends_its_request(engine: AsyncLLM) -> None:
    async def leave() -> None:
        async with aclosing(engine.stream(text_ids(5), greedy(250))) as stream:
            async for _ in stream:
                break

    async def cancel(after: int) -> None:
        begun = asyncio.Event()

        async def read() -> None:
            count = 0
            async for _ in engine.stream(text_ids(5), greedy(250)):
                count += 1
                if count >= after:
                    begun.set()

        task = asyncio.create_task(read())
        if after:
            await begun.wait()
        else:
            await asyncio.sleep(0)  # it has asked, and nothing has been answered
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def wait_for() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.generate(text_ids(5), greedy(250)), 0.01)

    for count, work in enumerate((leave(), cancel(2), wait_for(), cancel(0)), 1):
        run(work)
        assert idle(engine, aborted=count)
    assert engine.llm.engine.scheduler.stats.finished == {"abort": 4}
    assert len(run(engine.generate(text_ids(5), greedy(3))).token_ids) == 3


def test_a_bad_prompt_is_an_error_of_its_task_alone(engine: AsyncLLM) -> None:
    async def mixed() -> list[RequestOutput | BaseException]:
        work = [engine.generate(text_ids(n), greedy(4)) for n in (5, 300, 0, 6)]
        return await asyncio.gather(*work, return_exceptions=True)

    good, long, empty, other = run(mixed())
    assert isinstance(good, RequestOutput) and isinstance(other, RequestOutput)
    assert isinstance(long, RequestError) and isinstance(empty, RequestError)
    assert "300 tokens" in str(long) and "empty" in str(empty)
    assert idle(engine)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (DeviceError("the device is on fire"), DeviceError, "on fire"),
        (RuntimeError("odd"), DeviceError, "the device failed: RuntimeError: odd"),
        (KeyError("odd"), XinhengError, "the engine failed: KeyError: 'odd'; this is a bug"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_the_runner_reaches_every_stream_and_the_engine_lives_on(
    engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[XinhengError], says: str
) -> None:
    runner = engine.llm.model_runner
    assert runner is not None
    run_batch, failures = runner.run, [error]

    def broken(batch: Any, profile: Any = None) -> Any:
        if failures:
            raise failures.pop()
        return run_batch(batch, profile)

    async def failing() -> list[RequestOutput | BaseException]:
        work = [engine.generate(text_ids(4, i), greedy(200)) for i in range(6)]
        return await asyncio.gather(*work, return_exceptions=True)

    async def some_tokens_then_fail() -> None:
        stream = engine.stream(text_ids(4), greedy(200))
        await anext(stream)
        failures.append(error)
        with pytest.raises(kind, match=says):
            async for _ in stream:
                pass

    monkeypatch.setattr(runner, "run", broken)
    results = run(failing())
    failed = [result for result in results if isinstance(result, kind)]
    assert failed and all(says in str(result) for result in failed)
    assert all(isinstance(result, kind | RequestOutput) for result in results)
    run(some_tokens_then_fail())
    assert idle(engine)
    assert len(run(engine.generate(text_ids(5), greedy(3))).token_ids) == 3


def test_closing_ends_streams_under_way_with_an_error(llm: LLM) -> None:
    engine = AsyncLLM(llm)

    async def read() -> None:
        stream = engine.stream(text_ids(5), greedy(250))
        await anext(stream)
        closing = asyncio.create_task(asyncio.to_thread(engine.close))
        with pytest.raises(XinhengError, match="the engine has been closed"):
            while True:
                await anext(stream)
        await closing

    async def late() -> None:
        with pytest.raises(XinhengError, match="the engine has been closed"):
            await engine.generate(text_ids(5), greedy(2))

    run(read())
    run(late())
    engine.close()
    assert not engine._thread.is_alive()


def test_requests_that_come_while_it_closes_do_not_wait_for_ever(llm: LLM) -> None:
    engine = AsyncLLM(llm)

    async def flood() -> list[RequestOutput | BaseException]:
        closer = threading.Timer(0.02, engine.close)
        closer.start()
        work = [engine.generate(text_ids(4, i), greedy(100)) for i in range(50)]
        results = await asyncio.gather(*work, return_exceptions=True)
        await asyncio.to_thread(closer.join)
        return results

    results = run(flood())
    assert all(isinstance(result, XinhengError | RequestOutput) for result in results)
    assert any(isinstance(result, XinhengError) for result in results)


def test_an_event_loop_that_ends_early_does_not_stop_the_engine(engine: AsyncLLM) -> None:
    async def abandon() -> None:
        await anext(engine.stream(text_ids(5), greedy(100)))

    loop = asyncio.new_event_loop()
    loop.run_until_complete(abandon())
    loop.close()
    assert len(run(engine.generate(text_ids(5), greedy(3))).token_ids) == 3


def test_several_event_loops_may_share_the_engine(engine: AsyncLLM) -> None:
    results: list[RequestOutput] = []

    def work(seed: int) -> None:
        results.append(run(engine.generate(text_ids(5, seed), greedy(20))))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert idle(engine)
