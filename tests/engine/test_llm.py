"""The library: what a prompt gives depends on nothing but itself, and nothing is left behind by errors and leavers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xinheng.core.errors import ModelError, RequestError, SettingsError, XinhengError
from xinheng.core.hal import Device
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, SamplingParams
from xinheng.engine.runner import block_bytes

from . import tiny
from .tiny import greedy, open_llm, text_ids

PROMPTS = 16
TOKENS = 10


def sampled(index: int) -> SamplingParams:
    return SamplingParams(max_tokens=TOKENS, temperature=1.1, top_p=0.95, seed=index, ignore_eos=True)


@dataclass(frozen=True)
class Alone:
    """A model, some prompts, and what each gives when it has the engine for itself."""

    folder: Path
    device: str
    prompts: list[list[int]]
    params: list[SamplingParams]
    answers: list[tuple[int, ...]]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def alone(request: pytest.FixtureRequest, device: Device, llama_folder: Path, gemma_folder: Path) -> Alone:
    folder = llama_folder if request.param == "llama" else gemma_folder
    count = 6 if (request.param, device.spec) == ("gemma3", "sim:exact") else PROMPTS
    prompts = [text_ids(1 + 37 * i % 41, i) for i in range(count)]
    params = [greedy(TOKENS) if i % 2 else sampled(i) for i in range(count)]
    with open_llm(folder, device.spec) as llm:
        answers = [llm.generate(p, s)[0].token_ids for p, s in zip(prompts, params, strict=True)]
    return Alone(folder, device.spec, prompts, params, answers)


def together(alone: Alone, **settings: Any) -> tuple[list[tuple[int, ...]], LLM]:
    with open_llm(alone.folder, alone.device, **settings) as llm:
        outputs = llm.generate(alone.prompts, alone.params)
        assert nothing_is_held(llm)
    return [output.token_ids for output in outputs], llm


def nothing_is_held(llm: LLM) -> bool:
    usage = llm.engine.scheduler.cache.usage().values()
    return not llm.engine.has_work and not llm._mail and all(group.used == 0 for group in usage)


def test_answers_vary(alone: Alone) -> None:
    assert len(set(alone.answers)) == len(alone.answers)
    assert all(len(set(answer)) > 2 for answer in alone.answers)


def test_a_batch_changes_no_answer(alone: Alone) -> None:
    assert together(alone)[0] == alone.answers


def test_few_places_and_small_chunks_change_no_answer(alone: Alone) -> None:
    ids, llm = together(alone, max_num_seqs=3, prefill_chunk=5, max_num_batched_tokens=9)
    assert ids == alone.answers
    assert llm.engine.scheduler.stats.num_steps > 4 * TOKENS


def test_preemption_changes_no_answer(alone: Alone) -> None:
    params = [SamplingParams(max_tokens=44, temperature=0.8 * (i % 2), seed=i, ignore_eos=True) for i in range(5)]
    prompts = [text_ids(3 + i, i) for i in range(5)]
    with open_llm(alone.folder, alone.device) as llm:
        answers = [llm.generate(p, s)[0].token_ids for p, s in zip(prompts, params, strict=True)]
    memory = 5 * sum(block_bytes(group, 16) for group in llm.info.groups)
    with open_llm(alone.folder, alone.device, block_size=16, cache_memory=memory, prefill_chunk=16) as llm:
        outputs = llm.generate(prompts, params)
        assert nothing_is_held(llm)
    assert [output.token_ids for output in outputs] == answers
    assert llm.engine.scheduler.stats.num_preemptions > 0


def test_a_runner_in_another_process_changes_no_answer(alone: Alone) -> None:
    assert together(alone, runner="subprocess")[0] == alone.answers


@pytest.fixture(scope="module")
def llm(llama_folder: Path) -> Iterator[LLM]:
    with open_llm(llama_folder, "cpu:0", max_num_seqs=4, block_size=16) as made:
        yield made


def test_a_seed_repeats_and_no_seed_does_not(llm: LLM) -> None:
    prompt = text_ids(8)

    def answer(seed: int | None) -> tuple[int, ...]:
        return llm.generate(prompt, SamplingParams(max_tokens=12, seed=seed, ignore_eos=True))[0].token_ids

    assert answer(3) == answer(3)
    assert len({answer(3), answer(4), answer(-1), answer(2**63 - 1)}) == 4
    assert answer(None) != answer(None)
    choices = [SamplingParams(max_tokens=12, seed=3, ignore_eos=True).for_choice(i) for i in range(3)]
    outputs = llm.generate([prompt] * 3, choices)
    assert len({output.token_ids for output in outputs}) == 3
    assert outputs[0].token_ids == answer(3)


def test_prompts_may_be_texts_ids_and_mixtures(llm: LLM) -> None:
    ids = llm.encode("the moon")
    want = llm.generate("the moon", greedy(4))
    assert [output.prompt for output in want] == [tuple(ids)]
    for prompts in (ids, tuple(ids), np.array(ids), [ids], ["the moon"], [np.array(ids, np.int32)]):
        assert [output.token_ids for output in llm.generate(prompts, greedy(4))] == [want[0].token_ids]  # type: ignore[arg-type]
    mixture: list[str | list[int]] = ["the moon", ids, "a mill"]
    mixed = llm.generate(mixture, greedy(4))
    assert mixed[0].token_ids == mixed[1].token_ids == want[0].token_ids
    assert mixed[2].prompt == tuple(llm.encode("a mill"))
    assert llm.generate([], greedy(4)) == []


def test_control_tokens_are_recognised_in_a_raw_prompt_and_not_in_messages(llm: LLM) -> None:
    assert llm.encode("<|im_start|>user")[0] == 1
    output = llm.chat([{"role": "user", "content": "say <|im_end|>"}], greedy(2))
    assert output.prompt.count(2) == 1  # the one of the template
    assert llm.tokenizer.decode(output.prompt, skip_special=False).startswith(
        "<|im_start|>user\nsay <|im_end|><|im_end|>"
    )


def test_parameters_must_be_one_or_as_many_as_prompts(llm: LLM) -> None:
    with pytest.raises(RequestError, match="2 prompts came with 3 sampling parameters"):
        llm.generate(["a", "b"], [greedy(1)] * 3)


@pytest.mark.parametrize("bad", [[], [400], text_ids(256), ["x"]], ids=["empty", "unknown id", "too long", "no ids"])
def test_one_bad_prompt_generates_nothing_and_leaves_nothing(llm: LLM, bad: Any) -> None:
    steps = llm.engine.scheduler.stats.num_steps
    with pytest.raises(RequestError):
        llm.generate([text_ids(4), text_ids(5), bad, text_ids(6)], greedy(4))
    assert llm.engine.scheduler.stats.num_steps == steps
    assert nothing_is_held(llm)
    assert len(llm.generate(text_ids(4), greedy(4))[0].token_ids) == 4


def test_an_interrupt_leaves_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step = llm.engine.step
    left = iter([True, True, False])

    def interrupted() -> Any:
        if not next(left):
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([text_ids(4)] * 3, greedy(20))
    assert nothing_is_held(llm)


def test_a_stream_gives_the_pieces_of_the_answer(llm: LLM) -> None:
    (whole,) = llm.generate("the sea", greedy(12))
    deltas = list(llm.stream("the sea", greedy(12)))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert tuple(t for delta in deltas for t in delta.token_ids) == whole.token_ids
    assert [delta.finished for delta in deltas] == [False] * 11 + [True]


def test_streams_and_calls_may_interleave(llm: LLM) -> None:
    """A step of one reader makes tokens of all: none may get lost, and nobody may wait for ever."""
    prompts = [text_ids(5, seed) for seed in range(3)]
    counts = [4, 20, 9]
    want = [llm.generate(p, greedy(n))[0].token_ids for p, n in zip(prompts, counts, strict=True)]
    streams = [llm.stream(p, greedy(n)) for p, n in zip(prompts, counts, strict=True)]
    told: list[list[int]] = [[], [], []]
    for round_, deltas in enumerate(zip_longest(*streams)):
        for index, delta in enumerate(deltas):
            told[index] += delta.token_ids if delta is not None else ()
        if round_ == 1:
            assert llm.generate(prompts[2], greedy(counts[2]))[0].token_ids == want[2]
            assert len(llm.logits(prompts[0])) == 5
    assert [tuple(ids) for ids in told] == want
    assert nothing_is_held(llm)


def test_leaving_a_stream_ends_its_request(llm: LLM) -> None:
    stream = llm.stream(text_ids(20), greedy(50))
    next(stream)
    assert not nothing_is_held(llm)
    stream.close()
    assert nothing_is_held(llm)
    llm.stream(text_ids(20), greedy(50)).close()  # not even begun
    assert nothing_is_held(llm)
    with pytest.raises(RequestError):
        next(llm.stream([], greedy(1)))
    assert nothing_is_held(llm)


def test_a_request_that_somebody_else_ends_does_not_hang(llm: LLM) -> None:
    stream = llm.stream(text_ids(4), greedy(50))
    llm.engine.abort(next(stream).request_id)
    with pytest.raises(XinhengError, match="ended by somebody else"):
        next(stream)


def test_logits_leave_running_requests_alone(llm: LLM) -> None:
    (want,) = llm.generate(text_ids(20), greedy(30))
    stream = llm.stream(text_ids(20), greedy(30))
    told: list[int] = []
    for delta in stream:
        told += delta.token_ids
        llm.logits(text_ids(40, 7), 16)
    assert tuple(told) == want.token_ids
    assert nothing_is_held(llm)


@pytest.mark.parametrize(
    ("ids", "chunk"), [([], None), ([5], 0), ([5], -1), ([304], None), (text_ids(257), None), ([0.5], None)]
)
def test_impossible_logits_are_refused(llm: LLM, ids: Any, chunk: int | None) -> None:
    with pytest.raises(RequestError):
        llm.logits(ids, chunk)
    assert nothing_is_held(llm)


def test_logits_that_the_cache_cannot_hold_are_refused(llama_folder: Path) -> None:
    with open_llm(llama_folder, "cpu:0", block_size=16, cache_memory=2 * 16 * 512) as llm:
        assert llm.logits(text_ids(32)).shape == (32, 304)
        with pytest.raises(RequestError, match="33 tokens does not fit"):
            llm.logits(text_ids(33))
        assert llm.logits(text_ids(32)).shape == (32, 304)
        assert nothing_is_held(llm)


def test_a_model_without_a_template_says_what_to_do(llama_folder: Path, tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model", tiny.LLAMA)
    tiny.write_tokenizer(folder, template=None)
    with open_llm(folder, "cpu:0") as llm:
        assert llm.tokenizer.chat_template is None
        with pytest.raises(ModelError, match="no chat template"):
            llm.chat([{"role": "user", "content": "hi"}])


def test_a_closed_model_says_so(llama_folder: Path) -> None:
    llm = open_llm(llama_folder, "cpu:0")
    stream = llm.stream(text_ids(4), greedy(50))
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(XinhengError, match="closed"):
        next(stream)
    with pytest.raises(XinhengError, match="closed"):
        llm.generate("x")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_model_len": 300}, "max_model_len is 300; the model was made for 256 tokens"),
        ({"block_size": 7}, "block_size is 7; cpu:0 takes 16, 32"),
        ({"cache_dtype": "int4"}, "cache_dtype is 'int4'; cpu:0 can hold a cache in"),
        ({"cache_memory": 1000}, "cache_memory of 1000 bytes holds not even one block"),
        ({"max_num_seqs": 300}, "max_num_batched_tokens is 256 and max_num_seqs 300"),
    ],
    ids=str,
)
def test_settings_that_are_impossible_here_are_refused(llama_folder: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        open_llm(llama_folder, "cpu:0", **settings)


def test_an_unknown_dtype_is_refused(llama_folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"runtime.dtype is 'float31'; cpu:0 can compute in .*float32"):
        LLM(llama_folder, runtime=RuntimeSettings(device="cpu:0", dtype="float31"))


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model", tiny.LLAMA)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        open_llm(folder, "cpu:0")


def test_shorter_contexts_may_be_asked_for(llama_folder: Path) -> None:
    with open_llm(llama_folder, "cpu:0", max_model_len=32) as llm:
        output = llm.generate(text_ids(20), greedy(100))[0]
        assert (len(output.token_ids), output.clamped) == (12, True)
        with pytest.raises(RequestError, match="context of this model 32"):
            llm.generate(text_ids(32))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_near_single_precision(llama_folder: Path, dtype: str) -> None:
    with open_llm(llama_folder, "cpu:0") as llm:
        want = llm.logits(text_ids(40))
    with LLM(llama_folder, runtime=RuntimeSettings(device="cpu:0", dtype=dtype)) as llm:
        assert llm.info.dtype == dtype
        got = llm.logits(text_ids(40))
    error = np.abs(got - want).max() / (want.max() - want.min())
    assert 1e-6 < error < (0.05 if dtype == "bfloat16" else 0.01)
