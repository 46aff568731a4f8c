"""Ranks in processes of their own: together they answer like one, and none outlives another."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from xinheng.core.errors import DeviceError, ModelError, SettingsError, XinhengError
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings, SamplingParams
from xinheng.engine.parallel import ParallelRunner, joint_info
from xinheng.engine.runner import RunnerInfo
from xinheng.engine.seat import Seat

from .tiny import greedy, open_llm, text_ids

PROMPTS = [text_ids(9), text_ids(40, 1), text_ids(3, 2)]
SEEDED = SamplingParams(max_tokens=12, temperature=0.9, top_p=0.9, seed=7, ignore_eos=True)
GOLDEN = Path(__file__).parents[1] / "golden" / "models" / "smollm2.json"

Answers = list[tuple[int, ...]]


def answers(llm: LLM) -> Answers:
    """Greedy and sampled ids, the prompts in one batch, chunked and with mates that come and go."""
    made = llm.generate(PROMPTS, [greedy(12), greedy(7), greedy(10)]) + llm.generate(PROMPTS, SEEDED)
    return [output.token_ids for output in made]


def runner(llm: LLM) -> ParallelRunner:
    assert isinstance(llm.engine.runner, ParallelRunner)
    return llm.engine.runner


def processes(llm: LLM) -> list[int]:
    return [rank._process.pid for rank in runner(llm)._ranks]


def open_ranks(folder: Path) -> LLM:
    return open_llm(folder, "cpu:0", tensor_parallel_size=2, prefill_chunk=16)


def test_two_ranks_answer_like_one(llama_folder: Path) -> None:
    with open_llm(llama_folder, "cpu:0", prefill_chunk=16) as alone:
        expected = answers(alone)
    with open_ranks(llama_folder) as llm:
        assert answers(llm) == expected
        assert llm.info.device == "cpu:0"
        assert llm.info.groups[0].state["heads"] == 1
        assert llm.info.receipt_summary.startswith("2 ranks, of which each: ")
        with pytest.raises(XinhengError, match=r"set engine\.runner to inprocess for this call, with one rank"):
            llm.logits(PROMPTS[0])
        os.kill(processes(llm)[1], signal.SIGSTOP)
        interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, greedy(3))
        interrupt.join()
        os.kill(processes(llm)[1], signal.SIGCONT)
        # only the answer that was waited for is lost
        assert answers(llm) == expected
        llm.close()
        runner(llm).close()
        assert [rank._process.returncode for rank in runner(llm)._ranks] == [0, 0]


def test_a_killed_rank_ends_all_and_is_named(llama_folder: Path) -> None:
    with open_ranks(llama_folder) as llm:
        first, second = processes(llm)
        os.kill(second, signal.SIGSTOP)
        killer = threading.Timer(0.3, os.kill, (second, signal.SIGKILL))  # while the first waits for it
        killer.start()
        for _ in range(2):
            with pytest.raises(DeviceError, match="rank 1 of 2: the runner process ended with signal 9"):
                llm.generate(PROMPTS, greedy(3))
        killer.join()
        assert not llm.engine.has_work
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)


def test_ranks_that_do_not_answer_are_ended(llama_folder: Path) -> None:
    with open_ranks(llama_folder) as llm:
        runner(llm)._timeout = 0.3
        os.kill(processes(llm)[0], signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(DeviceError, match=r"ranks 0, 1 of 2 did not answer for 0\.3 s"):
            llm.generate(PROMPTS, greedy(3))
        assert time.monotonic() - begin < 5


BROKEN = """
from xinheng.engine.runner import ModelRunner
run = ModelRunner.run

def broken(self, batch, profile=None):
    if self.shard.rank == 1:
        raise RuntimeError("boom")
    return run(self, batch, profile)

ModelRunner.run = broken
"""


def test_a_rank_whose_step_fails_is_named(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with open_ranks(llama_folder) as llm:
        with pytest.raises(DeviceError, match="rank 1 of 2: the device failed: RuntimeError: boom; all ranks"):
            llm.generate(PROMPTS, greedy(3))
        assert all(rank._process.returncode == -signal.SIGKILL for rank in runner(llm)._ranks)
    assert "RuntimeError: boom" in capfd.readouterr().err


def start(folder: Path, ranks: int, device: str = "cpu:0") -> None:
    settings = EngineSettings(tensor_parallel_size=ranks, runner_timeout=60.0)
    ParallelRunner(folder, RuntimeSettings(device=device, dtype="float32"), settings).close()


def test_what_cannot_be_shared_is_said_while_loading(llama_folder: Path) -> None:
    with pytest.raises(ModelError, match=r"rank . of 3: 2 key-value heads cannot be held by 3 ranks"):
        start(llama_folder, 3)
    with pytest.raises(DeviceError, match=r"rank . of 2: .*'sim:exact' has no collective library"):
        start(llama_folder, 2, "sim:exact")


def test_each_rank_has_its_device() -> None:
    seats = [Seat(rank, 2, "tcp://localhost:1") for rank in range(2)]
    assert [seat.device("acme:4,6@torch") for seat in seats] == ["acme:4@torch", "acme:6@torch"]
    assert [seat.device("auto") for seat in seats] == ["auto", "auto"]
    assert [seat.device("cpu:0") for seat in seats] == ["cpu:0", "cpu:0"]
    with pytest.raises(SettingsError, match=r"names 3 devices, but engine\.tensor_parallel_size is 2"):
        seats[0].device("acme:0,1,2")


def test_the_rank_with_the_fewest_blocks_decides() -> None:
    infos = [
        RunnerInfo(f"acme:{n}", "", "strict", "float32", (), blocks, 16, 64, 300, (), {}, "5 ops")
        for n, blocks in enumerate([{"full": 9, "window8": 4}, {"full": 7, "window8": 6}])
    ]
    info = joint_info(infos)
    assert info.blocks == {"full": 7, "window8": 4}
    assert (info.device, info.receipt_summary) == ("acme:0, acme:1", "2 ranks, of which each: 5 ops")


def test_smollm2_on_three_ranks(smollm2_path: Path) -> None:
    known = json.loads(GOLDEN.read_text(encoding="utf-8"))["prompts"]
    (name, prompt), *_ = known.items()
    settings = {"cache_memory": "60MB", "max_model_len": 256, "max_num_seqs": 1}
    with open_llm(smollm2_path, "cpu:0", tensor_parallel_size=3, **settings) as llm:
        (output,) = llm.generate(prompt["text"], greedy(16))
        assert llm.info.groups[0].state["heads"] == 1
    assert output.token_ids == tuple(prompt["forced"][:16]), name  # which is what one rank gives
