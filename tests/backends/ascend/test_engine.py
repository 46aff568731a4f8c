"""A model through the engine on MindSpore's CPU target: the ids of the CPU, and no torch in the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from xinheng.core.errors import DeviceError
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings, SamplingParams
from xinheng.engine.runner_handle import SubprocessRunner

from ...engine import tiny
from ...engine.tiny import greedy, open_llm, text_ids

SPEC = "ascend:cpu@mindspore"
PROMPTS = [text_ids(21, seed=4), text_ids(3, seed=5)]
SITE = """
import atexit, json, sys

def tell():
    if "xinheng.engine.runner" in sys.modules:
        loaded = sorted({{"mindspore", "torch", "torch_npu", "transformers"}} & sys.modules.keys())
        open({path!r}, "a").write(json.dumps(loaded) + "\\n")

atexit.register(tell)
"""


def answers(folder: Path, device: str, **settings: object) -> list[tuple[int, ...]]:
    """The ids of two prompts at once, then of one by sampling with a seed."""
    sampled = SamplingParams(max_tokens=6, temperature=0.9, top_p=0.9, top_k=40, seed=11, ignore_eos=True)
    with open_llm(folder, device, **settings) as llm:
        made = [*llm.generate(PROMPTS, greedy(24)), *llm.generate(PROMPTS[0], sampled)]
        return [output.token_ids for output in made]


def test_two_engine_processes_give_the_same_ids_and_one_has_no_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.write_model(tmp_path / "llama", tiny.LLAMA, seed=1)
    loaded = tmp_path / "loaded"
    (tmp_path / "sitecustomize.py").write_text(SITE.format(path=str(loaded)))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    made = [answers(folder, device, runner="subprocess") for device in ("cpu:0", SPEC)]
    assert made[0] == made[1]
    assert len(set(made[0][0])) > 5
    assert [json.loads(line) for line in loaded.read_text().splitlines()] == [[], ["mindspore"]]


@pytest.mark.parametrize(("dtype", "share"), [("float32", 1e-5), ("float16", 5e-3), ("bfloat16", 4e-2)])
def test_logits_of_sliding_windows_and_gelu_are_near_those_of_the_cpu(tmp_path: Path, dtype: str, share: float) -> None:
    folder = tiny.write_model(tmp_path / "gemma", tiny.GEMMA3, seed=2)
    made = []
    for device in ("cpu:0", SPEC):
        with LLM(folder, runtime=RuntimeSettings(device=device, dtype=dtype), settings=EngineSettings()) as llm:
            made.append(llm.logits(text_ids(40, seed=3), chunk=16))
            assert {line.device for line in llm.receipt.lines} == {device} and llm.receipt.decomposed == ()
    assert float(np.abs(made[0] - made[1]).max()) < share * float(np.ptp(made[0]))


FAMILIES = {
    "qwen3_moe": tiny.QWEN3_MOE,
    "glm4": tiny.GLM4,
    "deepseek_v3": tiny.DEEPSEEK_V3,
    "gemma3": tiny.GEMMA3,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_ids_and_logits_of_the_cpu(tmp_path: Path, family: str) -> None:
    folder = tiny.write_model(tmp_path / family, FAMILIES[family], seed=3)
    ids, logits = [], []
    for device in ("cpu:0", SPEC):
        with open_llm(folder, device) as llm:
            ids.append([output.token_ids for output in llm.generate(PROMPTS, greedy(12))])
            logits.append(llm.logits(text_ids(24, seed=6), chunk=7))
            assert {line.device for line in llm.receipt.lines} == {device}
    assert ids[0] == ids[1]
    assert float(np.abs(logits[0] - logits[1]).max()) < 1e-5 * float(np.ptp(logits[0]))


@pytest.mark.slow
def test_two_engines_in_one_program_answer_at_once_and_one_may_die(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "llama", tiny.LLAMA, seed=1)
    with open_llm(folder, "cpu:0") as first, open_llm(folder, SPEC, runner="subprocess") as second:
        engines = (first, second)
        with ThreadPoolExecutor(2) as pool:

            def together() -> list[list[tuple[int, ...]]]:
                made = list(pool.map(lambda llm: llm.generate(PROMPTS, greedy(8)), engines))
                return [[output.token_ids for output in outputs] for outputs in made]

            before = together()
            assert before[0] == before[1]
            runner = second.engine.runner
            assert isinstance(runner, SubprocessRunner)
            # it stops in the middle of its request, while the other one answers
            os.kill(runner._process.pid, signal.SIGSTOP)
            waiting = pool.submit(second.generate, PROMPTS, greedy(8))
            assert [output.token_ids for output in first.generate(PROMPTS, greedy(8))] == before[0]
            assert not waiting.done()
            os.kill(runner._process.pid, signal.SIGKILL)
            with pytest.raises(DeviceError, match="the runner process ended with signal 9"):
                waiting.result()
            assert together() == before


def test_a_program_that_generates_on_mindspore_has_no_torch(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "llama", tiny.LLAMA, seed=1)
    code = f"""
import sys
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, SamplingParams
with LLM({str(folder)!r}, runtime=RuntimeSettings(device={SPEC!r}, dtype="float32")) as llm:
    print(len(llm.generate([1, 2, 3], SamplingParams(max_tokens=3, ignore_eos=True))[0].token_ids))
print({{"torch", "torch_npu"}} & sys.modules.keys())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["3", "set()"]
