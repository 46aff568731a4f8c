"""A runner in another process: whatever happens to it becomes an error of ours, and what it prints disturbs nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from xinheng.core.errors import DeviceError, ModelError, PluginError, SettingsError, XinhengError
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings
from xinheng.engine.runner_handle import SubprocessRunner, info_from_json, info_to_json

from . import tiny
from .tiny import greedy, open_llm, text_ids

PROMPT = text_ids(6)


@pytest.fixture
def llm(llama_folder: Path) -> Iterator[LLM]:
    with open_llm(llama_folder, "sim:exact", runner="subprocess") as made:
        yield made


@pytest.fixture(scope="module")
def answer(llama_folder: Path) -> tuple[int, ...]:
    with open_llm(llama_folder, "sim:exact") as made:
        return made.generate(PROMPT, greedy(6))[0].token_ids


def handle(llm: LLM) -> SubprocessRunner:
    assert isinstance(llm.engine.runner, SubprocessRunner)
    return llm.engine.runner


def process(llm: LLM) -> int:
    return handle(llm)._process.pid


def ask(llm: LLM) -> tuple[int, ...]:
    return llm.generate(PROMPT, greedy(6))[0].token_ids


def start(folder: Path, **settings: object) -> SubprocessRunner:
    given = RuntimeSettings(device="sim:exact", dtype="float32")
    return SubprocessRunner(folder, given, EngineSettings(max_num_batched_tokens=256, **settings))  # type: ignore[arg-type]


def test_it_answers_like_a_runner_here_and_ends_when_closed(
    llm: LLM, llama_folder: Path, answer: tuple[int, ...]
) -> None:
    assert ask(llm) == answer
    with open_llm(llama_folder, "sim:exact") as here:
        assert llm.info == info_from_json(json.loads(json.dumps(info_to_json(here.info))))
    with pytest.raises(XinhengError, match=r"engine\.runner to inprocess"):
        llm.logits(PROMPT)
    runner = handle(llm)
    begin = time.monotonic()
    llm.close()
    runner.close()
    assert runner._process.returncode == 0
    assert time.monotonic() - begin < 4


def test_a_terminal_interrupts_the_engine_and_not_the_runner(llm: LLM) -> None:
    assert os.getpgid(process(llm)) != os.getpgid(0)


def test_a_killed_process_is_a_device_error_and_the_next_request_starts_another(
    llm: LLM, answer: tuple[int, ...]
) -> None:
    for _ in range(2):
        killed = process(llm)
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(DeviceError, match="ended with signal 9"):
            ask(llm)
        assert not llm.engine.has_work
        assert ask(llm) == answer
        assert process(llm) != killed


def test_a_process_with_less_room_than_the_one_before_is_refused(llm: LLM) -> None:
    runner = handle(llm)
    runner.info = replace(runner.info, blocks={name: count + 1 for name, count in runner.info.blocks.items()})
    os.kill(process(llm), signal.SIGKILL)
    with pytest.raises(DeviceError, match="ended with signal 9"):
        ask(llm)
    with pytest.raises(DeviceError, match=r"started again and has room for \d+ cache blocks.*engine\.cache_memory"):
        ask(llm)


def test_a_closed_runner_is_not_started_again(llm: LLM) -> None:
    handle(llm).close()
    with pytest.raises(DeviceError, match="has been closed"):
        ask(llm)
    assert handle(llm).failed


def test_a_process_killed_in_the_middle_of_a_step_is_a_device_error(llm: LLM) -> None:
    os.kill(process(llm), signal.SIGSTOP)
    killer = threading.Timer(0.2, os.kill, (process(llm), signal.SIGKILL))
    killer.start()
    with pytest.raises(DeviceError, match="ended with signal 9"):
        ask(llm)
    killer.join()


def test_a_hung_process_is_ended_after_the_timeout(llm: LLM) -> None:
    handle(llm)._timeout = 0.2
    os.kill(process(llm), signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(DeviceError, match=r"has not answered for 0\.2 s and was ended"):
        ask(llm)
    assert time.monotonic() - begin < 3
    assert handle(llm)._process.returncode == -signal.SIGKILL
    assert len(ask(llm)) == 6


def test_a_process_that_takes_no_message_is_ended(llama_folder: Path) -> None:
    runner = start(llama_folder, runner_timeout=8.0)
    os.kill(runner._process.pid, signal.SIGSTOP)
    runner._socket.setsockopt(1, 21, b"\x00" * 8 + (200_000).to_bytes(8, sys.byteorder))  # SOL_SOCKET, SO_SNDTIMEO
    with pytest.raises(DeviceError, match="has taken no message"):
        runner.send(b"B", bytes(50_000_000))
    runner.close()


def test_a_process_that_loads_too_long_is_ended(llama_folder: Path) -> None:
    with pytest.raises(DeviceError, match=r"has not answered for 0\.01 s"):
        start(llama_folder, runner_timeout=0.01)


def test_errors_while_loading_arrive_as_what_they_are(llama_folder: Path, tmp_path: Path) -> None:
    broken = tiny.write_model(tmp_path / "model", tiny.LLAMA | {"hidden_act": "gelu"})
    with pytest.raises(ModelError, match="hidden_act 'gelu'"):
        start(broken)
    with pytest.raises(SettingsError, match="block_size is 7"):
        start(llama_folder, block_size=7)
    with pytest.raises(PluginError, match="no backend plugin named 'nonsense'"):
        SubprocessRunner(llama_folder, RuntimeSettings(device="nonsense:0"), EngineSettings())


def test_an_error_in_a_step_arrives_as_what_it_is_and_the_process_goes_on(llm: LLM, answer: tuple[int, ...]) -> None:
    llm.engine.scheduler.max_num_batched_tokens = llm.engine.scheduler.chunk = 1000
    prompts = [text_ids(200), text_ids(200)]
    with pytest.raises(DeviceError, match="tokens is 400, but the graph was compiled for at most 256"):
        llm.generate(prompts, greedy(2))
    assert not llm.engine.has_work
    assert ask(llm) == answer


def test_an_interrupt_while_waiting_loses_only_that_answer(llm: LLM, answer: tuple[int, ...]) -> None:
    for _ in range(2):
        os.kill(process(llm), signal.SIGSTOP)
        interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            ask(llm)
        interrupt.join()
        os.kill(process(llm), signal.SIGCONT)
        assert ask(llm) == answer


def test_an_answer_that_nobody_waits_for_any_more_is_dropped(llm: LLM, answer: tuple[int, ...]) -> None:
    engine = llm.engine
    engine.add(text_ids(3, 9), greedy(1), "first")
    batch = engine.scheduler.schedule()
    assert batch is not None
    engine.runner.submit(batch)
    engine.runner.discard()
    engine.abort("first")
    engine.add(PROMPT, greedy(6), "first")
    deltas = [delta for _ in range(6) for delta in engine.step()]
    assert tuple(t for delta in deltas for t in delta.token_ids) == answer


def test_closing_does_not_wait_for_a_busy_process(llm: LLM) -> None:
    os.kill(process(llm), signal.SIGSTOP)
    stream = llm.stream(PROMPT, greedy(3))
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    interrupt.join()
    begin = time.monotonic()
    llm.close()
    assert time.monotonic() - begin < 2


SITE = """
import os, sys, threading, time
print("noise at the start")
os.write(1, b"bytes" * 100)

def noise():
    while True:
        print("noise in between")
        sys.stdout.flush()
        time.sleep(0.002)

threading.Thread(target=noise, daemon=True).start()
"""


def site(folder: Path, text: str, patch: pytest.MonkeyPatch) -> None:
    """Have every Python process that is started run a piece of code first."""
    (folder / "sitecustomize.py").write_text(text)
    patch.setattr(sys, "path", [str(folder), *sys.path])


def test_what_the_process_prints_goes_to_standard_error(
    llama_folder: Path,
    answer: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    site(tmp_path, SITE, monkeypatch)
    with open_llm(llama_folder, "sim:exact", runner="subprocess") as llm:
        assert ask(llm) == answer
    told = capfd.readouterr()
    assert told.out == ""
    assert "noise at the start" in told.err
    assert "bytesbytes" in told.err
    assert "noise in between" in told.err


BOOM = """
from xinheng.engine.runner import ModelRunner
run = ModelRunner.run

def broken(self, batch, profile=None):
    if batch.num_tokens == 13:
        raise {error}("boom")
    return run(self, batch, profile)

ModelRunner.run = broken
"""


@pytest.mark.parametrize(
    ("error", "says", "survives"),
    [("RuntimeError", "the device failed: RuntimeError: boom", True), ("KeyError", "ended with status 1", False)],
)
def test_a_kernel_that_raises_is_a_device_error_and_a_bug_ends_the_process(
    llama_folder: Path,
    answer: tuple[int, ...],
    error: str,
    says: str,
    survives: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    site(tmp_path, BOOM.format(error=error), monkeypatch)
    with open_llm(llama_folder, "sim:exact", runner="subprocess") as llm:
        with pytest.raises(DeviceError, match=says):
            llm.generate(text_ids(13), greedy(1))
        assert f"{error}: " in capfd.readouterr().err
        assert handle(llm).failed is not survives
        assert ask(llm) == answer


def test_a_process_that_cannot_start_says_so(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    site(tmp_path, "import os; os._exit(3)", monkeypatch)
    with pytest.raises(DeviceError, match="ended with status 3; its last words are on standard error"):
        start(llama_folder)
    capfd.readouterr()
