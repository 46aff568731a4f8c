"""The engine's loop: what ends a request, what a failure leaves behind, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xinheng.core.errors import DeviceError, RequestError, SettingsError
from xinheng.engine import LLM, Delta, Engine, EngineSettings, SamplingParams
from xinheng.engine.batch import Batch, BatchResult
from xinheng.engine.runner_handle import InProcessRunner, RunnerHandle
from xinheng.engine.tokenizer import Tokenizer

from . import tiny
from .tiny import greedy, text_ids


@pytest.fixture(scope="module")
def llm(llama_folder: Path) -> Iterator[LLM]:
    with tiny.open_llm(llama_folder, "cpu:0", max_num_seqs=4, block_size=16, cache_memory="200kB") as made:
        yield made


class Script(RunnerHandle):
    """A runner that says prescribed tokens, one list per request in the order of arrival, and fails on demand."""

    def __init__(self, like: LLM, *answers: Sequence[int]) -> None:
        self.info = like.info
        self.answers = [list(answer) for answer in answers]
        self.said: dict[str, int] = {}
        self.failures: list[BaseException] = []
        self.pending: list[Batch] = []
        self.closed = False

    def submit(self, batch: Batch) -> None:
        self.pending.append(batch)

    def collect(self) -> BatchResult:
        if self.failures:
            raise self.failures.pop()
        batch = self.pending.pop(0)
        tokens = []
        for row, name in enumerate(batch.request_ids):
            answer = self.answers[self.said.setdefault(name, len(self.said))]
            tokens.append(answer[int(batch.sampling.counter[row])])
        return BatchResult(batch.request_ids, np.array(tokens, np.int32))

    def discard(self) -> None:
        self.pending.clear()

    def close(self) -> None:
        self.closed = True


def scripted(llm: LLM, *answers: Sequence[int], **settings: Any) -> tuple[Engine, Script]:
    runner = Script(llm, *answers)
    return Engine(runner, llm.tokenizer, EngineSettings(**settings)), runner


def run(engine: Engine) -> dict[str, list[Delta]]:
    """Everything until no request is left, by request."""
    told: dict[str, list[Delta]] = {}
    while engine.has_work:
        for delta in engine.step():
            told.setdefault(delta.request_id, []).append(delta)
    return told


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text)


def nothing_is_held(engine: Engine) -> bool:
    usage = engine.scheduler.cache.usage()
    return not engine.has_work and not engine.scheduler.has_work and all(group.used == 0 for group in usage.values())


def test_deltas_add_up_to_the_output(llm: LLM) -> None:
    said = ids_of(llm.tokenizer, "a 你好😊 z")
    engine, _ = scripted(llm, said)
    engine.add([5, 6], greedy(len(said)))
    (deltas,) = run(engine).values()
    last = deltas[-1]
    assert "".join(delta.text for delta in deltas) == "a 你好😊 z"
    assert last.output is not None and last.timings is not None
    assert last.output.text == "a 你好😊 z"
    assert last.output.token_ids == tuple(said) == tuple(t for delta in deltas for t in delta.token_ids)
    assert (last.output.prompt, last.output.finish_reason, last.output.stop_reason) == ((5, 6), "length", None)
    assert all(not delta.finished for delta in deltas[:-1])
    assert 0 <= last.timings.queued <= last.timings.first_token
    assert last.timings.decode >= 0
    assert nothing_is_held(engine)


def test_a_stop_string_is_held_back_and_ends_the_request(llm: LLM) -> None:
    """vllm-project/vllm#3574: what may become a stop string is not streamed."""
    said = [i for letter in "ABCDEFGHIJKL" for i in ids_of(llm.tokenizer, letter)]
    engine, _ = scripted(llm, said)
    engine.add([5], SamplingParams(max_tokens=12, stop=("DEFGHIJ", "XYZ")))
    (deltas,) = run(engine).values()
    output = deltas[-1].output
    assert [delta.text for delta in deltas] == ["A", "B", "C", *[""] * 7]
    assert output is not None
    assert (output.text, output.finish_reason, output.stop_reason) == ("ABC", "stop", "DEFGHIJ")
    assert output.token_ids == tuple(said[:10])
    assert nothing_is_held(engine)


def test_what_was_held_back_comes_when_no_stop_string_followed(llm: LLM) -> None:
    engine, _ = scripted(llm, ids_of(llm.tokenizer, "A") + ids_of(llm.tokenizer, "D") + ids_of(llm.tokenizer, "E"))
    engine.add([5], SamplingParams(max_tokens=3, stop=("DEF",)))
    (deltas,) = run(engine).values()
    assert [delta.text for delta in deltas] == ["A", "", "DE"]
    assert deltas[-1].output is not None and deltas[-1].output.finish_reason == "length"


def test_a_stop_string_wins_over_length_when_both_come_at_once(llm: LLM) -> None:
    engine, _ = scripted(llm, [*ids_of(llm.tokenizer, "A"), *ids_of(llm.tokenizer, "B")])
    engine.add([5], SamplingParams(max_tokens=2, stop=("B",)))
    (deltas,) = run(engine).values()
    output = deltas[-1].output
    assert output is not None
    assert (output.text, output.finish_reason, output.stop_reason) == ("A", "stop", "B")
    assert nothing_is_held(engine)


END = 2  # <|im_end|>


@pytest.mark.parametrize(
    ("params", "count", "reason", "stop_reason"),
    [
        ({}, 3, "stop", None),
        ({"ignore_eos": True}, 6, "length", None),
        ({"stop_token_ids": [70]}, 2, "stop", 70),
        ({"ignore_eos": True, "stop_token_ids": [END]}, 3, "stop", END),
        ({"min_tokens": 3}, 5, "stop", None),
        ({"min_tokens": 2}, 3, "stop", None),
        ({"max_tokens": 2}, 2, "length", None),
        ({"max_tokens": 3}, 3, "stop", None),
    ],
    ids=str,
)
def test_what_ends_a_request(
    llm: LLM, params: dict[str, Any], count: int, reason: str, stop_reason: int | None
) -> None:
    said = [60, 70, END, 80, END, 90]
    engine, _ = scripted(llm, said)
    given: dict[str, Any] = {"max_tokens": 6} | params
    engine.add([5], SamplingParams(**given))
    (deltas,) = run(engine).values()
    output = deltas[-1].output
    assert output is not None
    assert output.token_ids == tuple(said[:count])
    assert (output.finish_reason, output.stop_reason) == (reason, stop_reason)
    shown = [t for t in said[: count - (reason == "stop")] if t != END]
    assert output.text == llm.tokenizer.decode(shown)
    assert nothing_is_held(engine)


def test_too_many_tokens_are_clamped_to_the_room_and_said_so(llm: LLM) -> None:
    """vllm-project/vllm#42474: a huge max_tokens is no reason to refuse."""
    room = llm.info.max_model_len - 250
    engine, _ = scripted(llm, [60] * 300)
    engine.add(text_ids(250), greedy(10**9))
    (deltas,) = run(engine).values()
    output = deltas[-1].output
    assert output is not None
    assert (len(output.token_ids), output.max_tokens, output.clamped) == (room, room, True)
    assert output.finish_reason == "length"
    with pytest.raises(RequestError, match=r"256 tokens and the context of this model 256"):
        engine.add(text_ids(256))


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([], "empty"),
        ([5, 304], "304 is not in the vocabulary of 304"),
        ([-1], "-1 is not in the vocabulary"),
        ([1.5], "integers"),
        (["a"], "integers"),
        ([[5]], "integers"),
    ],
    ids=str,
)
def test_impossible_prompts_are_refused_and_leave_nothing(llm: LLM, prompt: Any, says: str) -> None:
    engine, _ = scripted(llm)
    with pytest.raises(RequestError, match=says):
        engine.add(prompt)
    assert nothing_is_held(engine)


def test_a_prompt_that_no_cache_can_hold_is_refused_and_others_go_on(llama_folder: Path) -> None:
    """vllm-project/vllm#39734: such a prompt waited for ever and blocked those behind."""
    with tiny.open_llm(llama_folder, "cpu:0", block_size=16, cache_memory=8 * 16 * 2 * 2 * 2 * 16 * 4) as llm:
        assert llm.info.blocks == {"full": 8}
        with pytest.raises(RequestError, match="129 tokens and the whole key-value cache holds 128"):
            llm.generate(text_ids(129))
        assert len(llm.generate(text_ids(120), greedy(100))[0].token_ids) == 9
        assert len(llm.generate(text_ids(4), greedy(3))[0].token_ids) == 3


def test_ids_in_use_are_refused_and_automatic_ones_avoid_them(llm: LLM) -> None:
    engine, _ = scripted(llm, [60], [61], [62])
    engine.add([5], greedy(1), "request-0")
    with pytest.raises(RequestError, match="'request-0' is in use"):
        engine.add([5], greedy(1), "request-0")
    assert engine.add([5], greedy(1)) == "request-1"
    assert len(run(engine)) == 2
    assert engine.add([5], greedy(1), "request-0") == "request-0"
    run(engine)
    assert nothing_is_held(engine)


def test_abort_ends_a_request_wherever_it_is(llm: LLM) -> None:
    engine, _ = scripted(llm, [60] * 9, [61] * 9, max_num_seqs=1)
    running, waiting = engine.add([5], greedy(9)), engine.add([6], greedy(9))
    engine.step()
    engine.step()
    for name, count in ((waiting, 0), (running, 2)):
        assert name in engine
        delta = engine.abort(name)
        assert delta is not None and delta.output is not None
        assert (delta.output.finish_reason, len(delta.output.token_ids)) == ("abort", count)
        assert name not in engine
    assert engine.abort(running) is None
    assert engine.abort("never heard of") is None
    assert engine.step() == []
    assert nothing_is_held(engine)


@pytest.mark.parametrize("error", [DeviceError("out of order"), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_step_that_fails_loses_no_request(llm: LLM, error: BaseException, steps: int) -> None:
    answers = [60, 61, 62, 63, 64, 65], [70, 71, 72, 73], [80, 81]
    engine, runner = scripted(llm, *answers, max_num_seqs=2, prefill_chunk=4)
    names = [engine.add(text_ids(6, i), greedy(len(answer))) for i, answer in enumerate(answers)]
    told: dict[str, list[int]] = {name: [] for name in names}

    def step() -> None:
        for delta in engine.step():
            told[delta.request_id] += delta.token_ids

    for _ in range(steps):
        step()
    runner.failures.append(error)
    with pytest.raises(type(error)):
        step()
    assert not runner.pending
    assert all(group.used == 0 for group in engine.scheduler.cache.usage().values())
    while engine.has_work:
        step()
    assert list(told.values()) == [list(answer) for answer in answers]
    assert nothing_is_held(engine)


def test_a_kernel_that_raises_is_a_device_error(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert llm.model_runner is not None

    def broken(batch: Batch, profile: Any = None) -> BatchResult:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(llm.model_runner, "run", broken)
    engine = Engine(InProcessRunner(llm.model_runner), llm.tokenizer, llm.settings)
    engine.add([5], greedy(2))
    with pytest.raises(DeviceError, match="the device failed: RuntimeError: CUDA error: an illegal"):
        engine.step()


def test_settings_that_do_not_fit_each_other_are_refused(llm: LLM) -> None:
    with pytest.raises(SettingsError, match="max_num_batched_tokens is 8 and max_num_seqs 16"):
        scripted(llm, max_num_batched_tokens=8)


def test_closing_the_engine_closes_its_runner(llm: LLM) -> None:
    engine, runner = scripted(llm)
    engine.close()
    assert runner.closed
