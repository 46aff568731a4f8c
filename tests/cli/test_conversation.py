"""The conversation that `xinheng run` holds without a prompt."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xinheng.engine.tokenizer import Tokenizer

from ..engine import tiny
from .conftest import Command
from .test_run import SIM, interrupt_after

OPTIONS = (*SIM, "--temperature", "0", "--max-tokens", "4", "--ignore-eos")


@pytest.fixture
def conversations(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """The messages of every prompt that is made."""
    seen: list[list[dict[str, Any]]] = []
    encode = Tokenizer.encode_chat

    def noted(self: Tokenizer, messages: Any, *rest: Any, **others: Any) -> list[int]:
        seen.append(list(messages))
        return encode(self, messages, *rest, **others)

    monkeypatch.setattr(Tokenizer, "encode_chat", noted)
    return seen


def type_in(patch: pytest.MonkeyPatch, *lines: str | BaseException) -> list[str]:
    """Have somebody type these lines at a terminal; gives the prompts that were shown."""
    left: Iterator[str | BaseException] = iter(lines)
    shown: list[str] = []

    def typed(prompt: str = "") -> str:
        shown.append(prompt)
        line = next(left, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    patch.setattr("builtins.input", typed)
    patch.setattr(sys.stdin, "isatty", lambda: True)
    return shown


def roles(messages: list[dict[str, Any]]) -> str:
    return "".join(message["role"][0] for message in messages)


def test_each_prompt_sees_what_was_said_before(
    xinheng: Command, model: Path, monkeypatch: pytest.MonkeyPatch, conversations: list[list[dict[str, Any]]]
) -> None:
    type_in(monkeypatch, "one", "two", "", "/clear", "three", "/bye", "never read")
    done = xinheng("run", model, "--system", "Be brief.", *OPTIONS)
    assert done.status == 0
    assert [roles(messages) for messages in conversations] == ["su", "suau", "su"]
    first, second, third = conversations
    answers = done.out.splitlines()
    assert [message["content"] for message in second] == ["Be brief.", "one", answers[0], "two"]
    assert first[1]["content"] == "one" and third[1]["content"] == "three"
    assert done.err.splitlines() == [
        "/bye ends the conversation, /clear starts a new one, /? shows help",
        "the conversation is forgotten",
    ]


@pytest.mark.parametrize("end", ["/bye", "/exit", "/quit", " /bye ", EOFError()], ids=repr)
def test_ways_to_leave(
    xinheng: Command, model: Path, monkeypatch: pytest.MonkeyPatch, end: str | BaseException
) -> None:
    type_in(monkeypatch, end, AssertionError("it asked again"))
    assert xinheng("run", model, *OPTIONS).status == 0


def test_commands_are_not_sent_to_the_model(
    xinheng: Command, model: Path, monkeypatch: pytest.MonkeyPatch, conversations: list[list[dict[str, Any]]]
) -> None:
    type_in(monkeypatch, "/?", "/help", "/nonsense", "/etc/passwd is what?", "/bye")
    done = xinheng("run", model, *OPTIONS)
    assert [messages[-1]["content"] for messages in conversations] == ["/etc/passwd is what?"]
    assert "there is no command /nonsense" in done.err
    assert done.err.count("forget the conversation") == 2


def test_three_quotes_hold_several_lines(
    xinheng: Command, model: Path, monkeypatch: pytest.MonkeyPatch, conversations: list[list[dict[str, Any]]]
) -> None:
    shown = type_in(monkeypatch, '"""', "first", "", "  second", '"""', '"""one line"""', '"""a', 'b"""', "/bye")
    xinheng("run", model, *OPTIONS)
    texts = [messages[-1]["content"] for messages in conversations]
    assert texts == ["first\n\n  second", "one line", "a\nb"]
    assert shown.count(">>> ") == 4
    assert shown.count("... ") == 5


def test_an_interrupt_ends_an_answer_and_not_the_conversation(
    xinheng: Command, model: Path, monkeypatch: pytest.MonkeyPatch, conversations: list[list[dict[str, Any]]]
) -> None:
    interrupt_after(2, monkeypatch)
    type_in(monkeypatch, "one", KeyboardInterrupt(), "two", "/bye")
    done = xinheng("run", model, *SIM, "--temperature", "0", "--ignore-eos")
    assert done.status == 0
    assert done.err.count("(stopped)") == 2
    assert "use /bye to leave" in done.err
    assert [roles(messages) for messages in conversations] == ["u", "uau"]
    assert conversations[1][1]["content"] == done.out.splitlines()[0]  # the part that was said is remembered


def test_a_conversation_that_grew_too_long_says_what_to_do(
    xinheng: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, "one", "two", "three", "/clear", "four", "/bye")
    done = xinheng("run", model, *OPTIONS, "--set", "engine.max_model_len=48")
    assert done.status == 0
    assert "tokens and the context of this model 48" in done.err
    assert "; /clear starts a new conversation" in done.err
    assert len(done.out.splitlines()) >= 2


def test_raw_prompts_have_no_memory(xinheng: Command, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "the moon", "a mill", "the moon", "/bye")
    answers = xinheng("run", model, "--raw", *OPTIONS).out.splitlines()
    assert answers[0] == answers[2] != answers[1]


def test_stats_follow_every_answer(xinheng: Command, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "one", "two", "/bye")
    assert xinheng("run", model, "--stats", *OPTIONS).err.count("tokens/s") == 2


def test_json_needs_a_prompt(xinheng: Command, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, AssertionError("it asked"))
    done = xinheng("run", model, "--json", *OPTIONS)
    assert done.status == 1
    assert "--json answers one prompt" in done.err


LAUNCH = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from xinheng.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-c", LAUNCH, *arguments]
        environment = os.environ | {"TERM": "dumb", "NO_COLOR": "1"}
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str) -> str:
        """What was printed since the last call, up to and with `text`."""
        limit = time.monotonic() + 30
        while text not in self.seen:
            assert time.monotonic() < limit, f"waited for {text!r}, saw {self.seen!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def wait_for_more(self) -> None:
        """Wait until anything else has been printed."""
        while not self.seen:
            assert select.select([self.master], [], [], 30)[0]
            self.seen += os.read(self.master, 4096).decode(errors="replace")

    def interrupt_until(self, text: str) -> None:
        """Press ^C until `text` is printed: one that comes between readline's check and its wait is lost in CPython."""
        limit = time.monotonic() + 30
        while text not in self.seen:
            assert time.monotonic() < limit, f"pressed ^C for {text!r}, saw {self.seen!r}"
            self.type("\x03")
            if select.select([self.master], [], [], 3)[0]:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
        self.wait_for(text)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.mark.parametrize("runner", ["inprocess", "subprocess"])
def test_at_a_real_terminal(tmp_path: Path, runner: str) -> None:
    model = tiny.write_model(tmp_path / "model", tiny.LLAMA | {"max_position_embeddings": 8192})
    options = ("--temperature", "0", "--ignore-eos", "--set", f"engine.runner={runner}")
    with Terminal("run", str(model), *SIM, *options) as terminal:
        terminal.wait_for(">>> ")
        terminal.type("hello\n")
        terminal.wait_for("hello\r\n")
        terminal.wait_for_more()
        terminal.type("\x03")  # ^C
        assert "(stopped)" in terminal.wait_for(">>> ")
        terminal.interrupt_until("use /bye to leave")
        terminal.wait_for(">>> ")
        terminal.type("again\n")
        terminal.wait_for("again\r\n")
        terminal.wait_for_more()
        terminal.type("\x03")
        assert "(stopped)" in terminal.wait_for(">>> ")
        terminal.type("/bye\n")
        assert terminal.process.wait(10) == 0
