"""Two real models against values that transformers computed for them in float64 (scripts/make_goldens.py)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings, SamplingParams
from xinheng.engine.runner import block_bytes

from .tiny import greedy

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
TOLERANCE = 3e-4
"""Of a logit, absolute; transformers in float32 is off by up to 1.5e-4 itself."""

CASES = [
    (model, prompt)
    for model in ("smollm2", "gemma3")
    for prompt in json.loads((GOLDEN / f"{model}.json").read_text(encoding="utf-8"))["prompts"]
]


@dataclass(frozen=True)
class Golden:
    """What is known of one model: its record, the arrays by prompt and name, and its file."""

    record: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    path: Path


def load(name: str, path: Path) -> Golden:
    record = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return Golden(record, dict(arrays), path)


@pytest.fixture(scope="module")
def goldens(smollm2_path: Path, gemma3_path: Path) -> dict[str, Golden]:
    return {"smollm2": load("smollm2", smollm2_path), "gemma3": load("gemma3", gemma3_path)}


@pytest.fixture(scope="module")
def spec(request: pytest.FixtureRequest) -> str:
    """The first device asked for, by default the CPU: a simulated one is too slow here."""
    return str((request.config.getoption("--device") or ["cpu:0"])[0])


def open_model(path: Path, device: str, **settings: Any) -> LLM:
    runtime = RuntimeSettings(device=device, numerics="strict", dtype="float32")
    given: dict[str, Any] = {"cache_memory": "300MB"} | settings
    return LLM(path, runtime=runtime, settings=EngineSettings(**given))


@pytest.fixture(scope="module")
def models(goldens: dict[str, Golden], spec: str) -> Iterator[dict[str, LLM]]:
    made = {name: open_model(golden.path, spec, max_num_batched_tokens=1024) for name, golden in goldens.items()}
    yield made
    for llm in made.values():
        llm.close()


def test_the_files_are_those_of_the_goldens(goldens: dict[str, Golden]) -> None:
    for golden in goldens.values():
        assert hashlib.sha256(golden.path.read_bytes()).hexdigest() == golden.record["sha256"]


@pytest.mark.parametrize(("model", "prompt"), CASES)
def test_greedy_tokens(goldens: dict[str, Golden], models: dict[str, LLM], model: str, prompt: str) -> None:
    known, llm = goldens[model].record["prompts"][prompt], models[model]
    assert llm.encode(known["text"]) == known["ids"]
    (output,) = llm.generate(known["text"], greedy(len(known["forced"])))
    assert list(output.token_ids) == known["forced"]


def statistics(rows: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
    """What the goldens keep of every row."""
    wide = rows.astype(np.float64)
    best = np.partition(wide, -2, axis=-1)[:, -2:]
    top = best[:, 1]
    return {
        "max": top,
        "min": wide.min(-1),
        "mean": wide.mean(-1),
        "logsumexp": top + np.log(np.exp(wide - top[:, None]).sum(-1)),
        "gap": top - best[:, 0],
    }


@pytest.mark.parametrize(("model", "prompt"), CASES)
def test_logits_at_every_position(
    goldens: dict[str, Golden], models: dict[str, LLM], model: str, prompt: str, record_property: Any
) -> None:
    golden, worst = goldens[model], 0.0
    known = golden.record["prompts"][prompt]
    want = {name.partition("/")[2]: array for name, array in golden.arrays.items() if name.startswith(f"{prompt}/")}
    count = 0
    for start, rows in models[model].logits_by_chunk(known["ids"] + known["forced"], 64):
        part = slice(start, start + len(rows))
        for name, values in statistics(rows).items():
            worst = max(worst, float(np.abs(values - want[name][part]).max()))
        clear = want["gap"][part] > TOLERANCE
        assert (rows.argmax(-1) == want["argmax"][part])[clear].all()
        length = np.linalg.norm(rows.astype(np.float64), axis=-1)
        assert np.abs(length / want["l2"][part] - 1).max() < 1e-5
        for position, ids, logits in zip(want["positions"], want["vocab"], want["logits"], strict=True):
            if start <= position < start + len(rows):
                worst = max(worst, float(np.abs(rows[position - start, ids] - logits).max()))
                count += 1
    assert count == 8
    print(f"{model} {prompt}: logits deviate by {worst:.1e} at most")
    record_property("largest_deviation", worst)
    assert worst < TOLERANCE


PROMPTS, TOKENS = 16, 16


@pytest.fixture(scope="module")
def prompts(goldens: dict[str, Golden]) -> list[list[int]]:
    """Pieces of a text, 1 to 91 tokens long."""
    ids = goldens["smollm2"].record["prompts"]["long"]["ids"]
    return [ids[25 * i : 25 * i + 1 + 6 * i] for i in range(PROMPTS)]


def params(index: int) -> SamplingParams:
    """Half of the prompts are continued at random, by a seed of their own."""
    return greedy(TOKENS) if index % 2 else SamplingParams(max_tokens=TOKENS, seed=index, ignore_eos=True)


@pytest.fixture(scope="module")
def alone(models: dict[str, LLM], prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """What each prompt gives when it has the engine for itself."""
    return [models["smollm2"].generate(p, params(i))[0].token_ids for i, p in enumerate(prompts)]


@pytest.mark.parametrize(
    "settings",
    [{}, {"prefill_chunk": 32, "max_num_batched_tokens": 40, "max_num_seqs": 5}, {"runner": "subprocess"}],
    ids=["all at once", "in small pieces", "in another process"],
)
def test_company_changes_no_answer(
    goldens: dict[str, Golden],
    spec: str,
    prompts: list[list[int]],
    alone: list[tuple[int, ...]],
    settings: dict[str, Any],
) -> None:
    with open_model(goldens["smollm2"].path, spec, **settings) as llm:
        outputs = llm.generate(prompts, [params(i) for i in range(PROMPTS)])
    assert [output.token_ids for output in outputs] == alone


def test_preemption_changes_no_answer(goldens: dict[str, Golden], spec: str, models: dict[str, LLM]) -> None:
    ids = goldens["smollm2"].record["prompts"]["long"]["ids"]
    prompts = [ids[40 * i : 40 * i + 4 + 3 * i] for i in range(4)]
    settings = [greedy(40), SamplingParams(max_tokens=40, seed=5, ignore_eos=True)] * 2
    want = [models["smollm2"].generate(p, s)[0].token_ids for p, s in zip(prompts, settings, strict=True)]
    memory = 4 * block_bytes(models["smollm2"].info.groups[0], 16)
    with open_model(goldens["smollm2"].path, spec, block_size=16, cache_memory=memory) as llm:
        outputs = llm.generate(prompts, settings)
        assert llm.engine.scheduler.stats.num_preemptions > 0
    assert [output.token_ids for output in outputs] == want


def test_an_exact_device_says_the_same(goldens: dict[str, Golden], models: dict[str, LLM]) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    want = models["smollm2"].chat(messages, greedy(8))
    with open_model(goldens["smollm2"].path, "sim:exact", max_model_len=256) as llm:
        got = llm.chat(messages, greedy(8))
    assert got.token_ids == want.token_ids
    assert "Paris" in got.text
