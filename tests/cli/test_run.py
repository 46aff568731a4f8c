"""`xinheng run`: one answer as text or JSON, and everything that may stand in its way."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xinheng.engine import LLM

from ..engine import tiny
from .conftest import Command

SIM = ("--device", "sim:exact")


@pytest.fixture
def nobody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))


def interrupt_after(count: int, patch: pytest.MonkeyPatch) -> None:
    """Have somebody press ^C after some pieces of each answer."""
    stream = LLM.stream

    def interrupted(self: LLM, *arguments: Any) -> Iterator[Any]:
        for index, delta in enumerate(stream(self, *arguments)):
            if index == count:
                signal.raise_signal(signal.SIGINT)
            yield delta

    patch.setattr(LLM, "stream", interrupted)


def test_raw_text_is_continued(xinheng: Command, model: Path) -> None:
    with tiny.open_llm(model, "cpu:0") as llm:
        (want,) = llm.generate("the moon", tiny.greedy(6))
    done = xinheng("run", model, "the moon", "--raw", "--temperature", 0, "--max-tokens", 6, "--ignore-eos")
    assert done == (0, want.text + "\n", "")


def test_json_holds_everything(xinheng: Command, model: Path) -> None:
    options = ("--temperature", 0, "--max-tokens", 6, "--ignore-eos", "--device", "cpu:0", "--system", "Be brief.")
    done = xinheng("run", model, "你好", "--json", *options)
    assert (done.status, done.err) == (0, "")
    data = json.loads(done.out)
    assert done.out.count("\n") == 1
    with tiny.open_llm(model, "cpu:0") as llm:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好"}]
        want = llm.chat(messages, tiny.greedy(6))
    assert data["text"] == want.text
    assert data["token_ids"] == list(want.token_ids)
    assert data["prompt_token_ids"] == list(want.prompt)
    assert (data["finish_reason"], data["stop_reason"]) == ("length", None)
    prompt = len(want.prompt)
    assert data["usage"] == {"prompt_tokens": prompt, "completion_tokens": 6, "total_tokens": prompt + 6}
    assert set(data["timings"]) == {"load_s", "queued_s", "first_token_s", "decode_s", "decode_tokens_per_s"}
    assert all(value > 0 for value in data["timings"].values())
    assert data["memory"]["peak_bytes"] > data["memory"]["model_bytes"] > 300_000
    assert (data["device"], data["dtype"], data["numerics"]) == ("cpu:0", "float32", "strict")
    assert data["device_name"]
    assert data["model"] == str(model)
    lines = {line["op"]: line for line in data["receipt"]["lines"]}
    assert lines["paged_attention"]["count"] == 2
    assert not any(line["moved"] for line in lines.values())


def test_sampling_options_reach_the_sampler(xinheng: Command, model: Path) -> None:
    def answer(*options: object) -> list[int]:
        fixed = ("--json", "--max-tokens", 8, "--ignore-eos", *SIM)
        ids: list[int] = json.loads(xinheng("run", model, "hi", *fixed, *options).out)["token_ids"]
        return ids

    best = answer("--temperature", 0)
    assert answer("--seed", 1) == answer("--seed", 1) != answer("--seed", 2)
    assert answer("--top-k", 1) == answer("--top-p", 1e-9) == answer("--min-p", 0.999) == best
    assert answer("--seed", 1, "--temperature", 5) != answer("--seed", 1)


def test_stop_strings_end_the_answer(xinheng: Command, model: Path) -> None:
    options = ("--raw", "--temperature", 0, "--ignore-eos", "--max-tokens", 20, "--json", *SIM)
    whole = json.loads(xinheng("run", model, "the moon", *options).out)
    piece = whole["text"][4:6]
    cut = json.loads(xinheng("run", model, "the moon", *options, "--stop", "nowhere", "--stop", piece).out)
    assert cut["text"] == whole["text"][: whole["text"].index(piece)]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", piece)


@pytest.mark.parametrize(("text", "prompt"), [("hi\n", "hi"), ("hi", "hi"), ("a\nb\n\n", "a\nb\n")])
def test_the_prompt_may_come_from_standard_input(
    xinheng: Command, model: Path, monkeypatch: pytest.MonkeyPatch, text: str, prompt: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    piped = xinheng("run", model, "--json", "--temperature", 0, "--max-tokens", 2, *SIM)
    given = xinheng("run", model, prompt, "--json", "--temperature", 0, "--max-tokens", 2, *SIM)
    assert json.loads(piped.out)["prompt_token_ids"] == json.loads(given.out)["prompt_token_ids"]


@pytest.mark.usefixtures("nobody_types")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hi", "--max-tokens", 0], "max_tokens is 0, it must be an integer of at least 1"),
        (["hi", "--temperature", -1], "temperature is -1.0, it must be"),
        (["hi", "--top-p", 0], "top_p is 0.0, it must be"),
        (["hi", "--raw", "--system", "x"], "--system needs a chat template"),
        ([""], "the prompt is empty"),
        ([" \n"], "the prompt is empty"),
        (["", "--raw"], "the prompt is empty"),
        ([], "the prompt is empty"),
        (["x" * 400], "tokens and the context of this model 256"),
        (["a\ud800b"], "a lone surrogate U+D800"),
        (["hi", "--set", "engine.max_seqs=3"], "engine.max_seqs"),
        (["hi", "--set", "engine.max_num_seqs"], "is not of the form table.key=value"),
        (["hi", "--set", "engine.max_model_len=9999"], "the model was made for 256 tokens"),
        (["hi", "--dtype", "float33"], "runtime.dtype is 'float33'"),
        (["hi", "--device", "sim:3"], "sim"),
        (["hi", "--device", "gpu:0"], "no backend plugin named 'gpu'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("machine", [False, True], ids=["text", "json"])
def test_errors_are_one_sentence_and_status_1(
    xinheng: Command, model: Path, arguments: list[object], says: str, machine: bool
) -> None:
    device = [] if "--device" in arguments else SIM
    done = xinheng("run", model, *map(str, arguments), *device, *(["--json"] if machine else []))
    assert done.status == 1
    assert done.err.startswith("xinheng: ")
    assert done.err.count("\n") == 1
    assert says in done.err
    if machine:
        error = json.loads(done.out)["error"]
        assert done.err == f"xinheng: {error['message']}\n"
        assert error["type"].endswith("Error")
    else:
        assert done.out == ""


def test_a_device_that_is_not_there_says_what_is_missing(xinheng: Command, model: Path) -> None:
    done = xinheng("run", model, "hi", "--device", "ascend:0")
    assert done.status == 1
    for part in ("ascend", "Huawei", "CANN", "torch_npu"):
        assert part in done.err


def test_a_model_without_a_template_asks_for_raw(xinheng: Command, tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "base", tiny.LLAMA)
    tiny.write_tokenizer(folder, template=None)
    done = xinheng("run", folder, "hi", *SIM)
    assert done.status == 1
    assert "base has no chat template" in done.err and "--raw" in done.err
    assert xinheng("run", folder, "hi", "--raw", "--max-tokens", 2, *SIM).status == 0


def test_a_model_that_is_not_there_says_so(xinheng: Command) -> None:
    done = xinheng("run", "no/such/model", "hi")
    assert done.status == 1
    assert "no file, folder or stored model 'no/such/model'" in done.err


@pytest.mark.parametrize("option", ["--nonsense", "--max-tokens=many", "--temperature="])
def test_wrong_usage_is_status_2(xinheng: Command, model: Path, option: str) -> None:
    done = xinheng("run", model, "hi", option)
    assert done.status == 2
    assert "Usage: xinheng run" in done.err
    assert xinheng("run").status == 2
    assert xinheng("walk").status == 2


def test_an_answer_that_fills_the_context_says_so(xinheng: Command, model: Path) -> None:
    """Cutting an answer in silence is what users complain about most."""
    options = ("--temperature", 0, "--ignore-eos", *SIM, "--set", "engine.max_model_len=40")
    for longer in ((), ("--max-tokens", 1000)):
        done = xinheng("run", model, "hi", *options, *longer)
        assert done.status == 0
        assert done.err == "(the answer ends here, since the context is full with 40 tokens)\n"
    assert xinheng("run", model, "hi", *options, "--max-tokens", 3).err == ""


def test_stats_go_to_standard_error(xinheng: Command, model: Path) -> None:
    done = xinheng("run", model, "hi", "--max-tokens", 4, "--ignore-eos", "--stats", *SIM)
    assert done.out.count("\n") >= 1
    for part in ("4 tokens: the first after", "tokens/s", "device sim:exact", "ops on sim:exact", "memory:"):
        assert part in done.err


def test_an_interrupt_stops_the_answer_with_status_130(
    xinheng: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(3, monkeypatch)
    options = ("--temperature", 0, "--ignore-eos", *SIM)
    done = xinheng("run", model, "hi", *options)
    assert done.status == 130
    assert done.out.endswith("\n")
    assert 1 < len(done.out) < 40
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert xinheng("run", model, "hi", "--json", *options) == (130, "", "")


def test_a_second_interrupt_does_not_wait(xinheng: Command, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = LLM.stream

    def stuck(self: LLM, *arguments: Any) -> Iterator[Any]:
        yield next(stream(self, *arguments))
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("nothing interrupted this step")

    monkeypatch.setattr(LLM, "stream", stuck)
    assert xinheng("run", model, "hi", *SIM).status == 130


def test_a_reader_that_leaves_ends_the_program_quietly(model: Path) -> None:
    command = [sys.executable, "-m", "xinheng", "run", str(model), "hi", "--ignore-eos", *SIM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        os.read(child.stdout.fileno(), 1)
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(30) == 1


def test_any_character_can_be_printed_anywhere(process: Command, model: Path) -> None:
    options = ("--temperature", "0", "--max-tokens", "30", "--ignore-eos", *SIM)
    plain = process("run", model, "你好", *options, PYTHONIOENCODING="ascii")
    full = process("run", model, "你好", *options, PYTHONIOENCODING="utf-8")
    assert (plain.status, full.status) == (0, 0)
    assert plain.out == full.out.encode("ascii", "replace").decode()
    assert plain.out != full.out


def test_bytes_that_are_no_text_are_refused(process: Command, model: Path) -> None:
    done = process("run", model, *SIM, stdin=b"abc\xff", PYTHONUTF8="1", PYTHONIOENCODING="utf-8:strict")
    assert done.status == 1
    assert done.err == "xinheng: standard input is not utf-8 text: invalid start byte at byte 3\n"


def test_without_input_and_output_it_does_not_crash(model: Path) -> None:
    call = f"{sys.executable} -m xinheng run {model} {' '.join(SIM)} --max-tokens 2"
    closed = subprocess.run(["sh", "-c", f"{call} <&-"], capture_output=True, text=True, timeout=60)
    assert closed.returncode == 1
    assert "give the prompt as an argument" in closed.stderr
    silent = subprocess.run(["sh", "-c", f"{call} hi >&-"], capture_output=True, text=True, timeout=60)
    assert (silent.returncode, silent.stderr) == (0, "")
