"""A request gets the same logits, bit for bit, and the same ids alone and in any batch, chunk and number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.core.hal.profile import Profile
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings
from xinheng.engine.batch import Batch, BatchResult

from . import tiny
from .packed import pack_models

FAMILIES = {
    "llama": tiny.LLAMA,
    "gemma3": tiny.GEMMA3,
    "qwen2": tiny.QWEN2,
    "qwen3": tiny.QWEN3,
    "glm4": tiny.GLM4,
    "qwen3_moe": tiny.QWEN3_MOE,
    "deepseek_v3": tiny.DEEPSEEK_V3,
}
MODES = ["strict", "fast"]
TOKENS = 5
LENGTHS = (1, 90, 3, 7, 8, 33, 20, 2)
PROMPTS = [tiny.text_ids(LENGTHS[i % len(LENGTHS)], i) for i in range(32)]
ALONE = [*range(len(LENGTHS))]
"""The prompts that are also run alone, one of each length."""
VARIANTS = [(32, 512, 1), (32, 7, 2), (5, 32, 2), (1, 7, 2)]
"""Sequences in a batch, tokens of a prompt in a step, threads."""

Answer = tuple[tuple[int, ...], list[NDArray[np.float32]]]
"""The ids of a request, and the logits that each was chosen by."""


def open_llm(path: Path, mode: str, seqs: int, chunk: int, threads: int, **others: Any) -> LLM:
    runtime = RuntimeSettings.model_validate(
        {"device": "cpu:0", "dtype": "float32", "numerics": mode, "threads": threads}
    )
    settings: dict[str, Any] = {"max_num_seqs": seqs, "prefill_chunk": chunk, "max_num_batched_tokens": 1024} | others
    return LLM(path, runtime=runtime, settings=EngineSettings(**settings))


def answers(llm: LLM, prompts: Sequence[Any], tokens: int) -> list[Answer]:
    """Greedy ids and logits of prompts that the scheduler serves together."""
    runner = llm.model_runner
    assert runner is not None
    logits: dict[str, list[NDArray[np.float32]]] = {}
    run = runner.run

    def watched(batch: Batch, profile: Profile | None = None) -> BatchResult:
        rows = runner.logits(batch)  # what a step writes it writes again
        for name, row in zip(batch.request_ids, rows, strict=True):
            logits.setdefault(name, []).append(row.copy())
        return run(batch, profile)

    runner.run = watched  # type: ignore[method-assign]
    made = llm.generate(prompts, tiny.greedy(tokens))
    return [(output.token_ids, logits[output.request_id]) for output in made]


def compare(made: Sequence[Answer], expected: Sequence[Answer], what: str) -> None:
    for i, ((ids, logits), (known, rows)) in enumerate(zip(made, expected, strict=True)):
        assert ids == known, f"ids of prompt {i} with {what}"
        for at, (a, b) in enumerate(zip(logits, rows, strict=True)):
            differing = np.flatnonzero(a.view(np.int32) != b.view(np.int32))
            assert not differing.size, f"logits of token {at} of prompt {i} with {what}, first at {differing[0]}"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_logits_have_the_same_bits_in_any_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str, mode: str
) -> None:
    pack_models(monkeypatch)
    folder = tiny.write_model(tmp_path / family, FAMILIES[family], seed=11)
    with open_llm(folder, mode, 1, 512, 1) as llm:
        expected = answers(llm, [PROMPTS[i] for i in ALONE], TOKENS)
        assert len({ids for ids, _ in expected}) > 1
    for seqs, chunk, threads in VARIANTS:
        with open_llm(folder, mode, seqs, chunk, threads) as llm:
            made = answers(llm, PROMPTS if seqs > 1 else [PROMPTS[i] for i in ALONE], TOKENS)
        compare([made[i] for i in ALONE], expected, f"batches of {seqs}, chunks of {chunk}, {threads} threads")


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("mode", MODES)
def test_a_cache_of_int8_changes_nothing_of_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str, mode: str
) -> None:
    pack_models(monkeypatch)
    folder, alone = tiny.write_model(tmp_path / family, FAMILIES[family], seed=11), [PROMPTS[i] for i in ALONE]
    rows, expected = [], []
    for cache in ("float32", "int8"):
        with open_llm(folder, mode, 1, 512, 1, cache_dtype=cache) as llm:
            rows.append(llm.logits(PROMPTS[1]))
            expected = answers(llm, alone, TOKENS)
    assert 1e-5 < np.abs(rows[0] - rows[1]).max() < 0.1 * np.abs(rows[0]).max()
    for seqs, chunk, threads in VARIANTS:
        with open_llm(folder, mode, seqs, chunk, threads, cache_dtype="int8") as llm:
            made = answers(llm, PROMPTS if seqs > 1 else alone, TOKENS)
        compare([made[i] for i in ALONE], expected, f"batches of {seqs}, chunks of {chunk}, {threads} threads")


def test_modes_differ_where_weights_are_packed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else the test above would say nothing about the kernels of fast mode."""
    pack_models(monkeypatch)
    folder = tiny.write_model(tmp_path / "llama", tiny.LLAMA, seed=11)
    rows = []
    for mode in MODES:
        with open_llm(folder, mode, 1, 512, 1) as llm:
            rows.append(llm.logits(PROMPTS[1]))
    assert 1e-4 < np.abs(rows[0] - rows[1]).max() < 1.0


TEXTS = [
    "The capital of France is",
    "A tide mill turns when",
    "Once upon a time there was a small machine that could",
    "def fibonacci(n):\n",
    "Wasser",
    "The moon goes around the earth, and the sea follows it twice a day. " * 12 + "So",
    "1, 2, 3,",
    "Dear Sir or Madam,\n\nI am writing to",
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_real_model_gives_the_same_ids_in_any_batch(smollm2_path: Path, mode: str) -> None:
    def generated(seqs: int, chunk: int, threads: int, count: int) -> list[tuple[int, ...]]:
        with open_llm(smollm2_path, mode, seqs, chunk, threads, cache_memory="300MB") as llm:
            prompts = [TEXTS[i % len(TEXTS)] for i in range(count)]
            return [output.token_ids for output in llm.generate(prompts, tiny.greedy(16))]

    expected = generated(1, 512, 2, len(TEXTS))
    for seqs, chunk, threads in [(5, 32, 1), (32, 7, 2), (32, 512, 2)]:
        made = generated(seqs, chunk, threads, max(seqs, len(TEXTS)))
        assert made == [expected[i % len(TEXTS)] for i in range(len(made))], (seqs, chunk, threads)
