"""Answers of a model, one or a conversation of them, printed as they come."""

from __future__ import annotations

import re
import signal
import sys
import threading
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from xinheng.engine import LLM, Delta, SamplingParams

HELP = """\
/bye    leave
/clear  forget the conversation
/?      this help
Text between two lines of \"\"\" is one prompt of several lines; ^C stops an answer."""


class Interrupts:
    """Within, the first ^C is only noted, so that a step of the engine ends in order; the second interrupts it."""

    noted = False

    def __enter__(self) -> Interrupts:
        self._inside = threading.current_thread() is threading.main_thread()
        if self._inside:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted:
            raise KeyboardInterrupt
        self.noted = True

    def __exit__(self, *_: object) -> None:
        if self._inside:
            signal.signal(signal.SIGINT, self._before)


@dataclass(frozen=True, slots=True)
class Answer:
    """The text of an answer and its last delta, which has the whole output; None if it was stopped before its end."""

    text: str
    final: Delta | None


class Conversation:
    """A conversation with one model.

    Raises:
        ModelError: the model has no chat template, and `raw` is not set.
    """

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None = None, raw: bool = False) -> None:
        from xinheng.core.errors import ModelError

        self.llm, self.params, self.raw = llm, params, raw
        self._start: list[dict[str, Any]] = [{"role": "system", "content": system}] if system is not None else []
        self.messages = list(self._start)
        if not raw and llm.tokenizer.chat_template is None:
            raise ModelError(
                f"{llm.path.name} has no chat template, so it cannot hold a conversation; "
                "use --raw to continue a plain text"
            )

    def answer(self, text: str, echo: bool = True) -> Answer:
        """Answer `text`, printing the answer as it comes.

        Raises:
            RequestError: the prompt is empty or does not fit.
        """
        ids = self._prompt(text)
        pieces: list[str] = []
        final = None
        stream = self.llm.stream(ids, self.params)
        with Interrupts() as interrupts:
            try:
                for delta in stream:
                    pieces.append(delta.text)
                    final = delta if delta.finished else None
                    if echo:
                        print(delta.text, end="", flush=True)
                    if interrupts.noted:
                        break
            finally:
                stream.close()
        if echo:
            print(flush=True)
        answer = Answer("".join(pieces), final)
        if answer.text:
            said = {"role": "assistant", "content": answer.text}
            self.messages += [{"role": "user", "content": text}, said]
        self._say_if_cut(answer)
        return answer

    def _prompt(self, text: str) -> list[int]:
        from xinheng.core.errors import RequestError

        if self.raw:
            return self.llm.encode(text)
        if not text.strip():
            raise RequestError("the prompt is empty; say something, or use --raw to begin from nothing")
        return self.llm.tokenizer.encode_chat([*self.messages, {"role": "user", "content": text}])

    def _say_if_cut(self, answer: Answer) -> None:
        output = answer.final.output if answer.final is not None else None
        if output is None or output.finish_reason != "length":
            return
        if output.clamped or self.params.max_tokens is None:
            room = len(output.prompt) + len(output.token_ids)
            print(f"(the answer ends here, since the context is full with {room} tokens)", file=sys.stderr)

    def converse(self, after: Callable[[Delta], None] | None = None) -> None:
        """Read prompts until "/bye" or the end of the input; ^C ends an answer, not the conversation."""
        import readline  # noqa: F401  (gives input() line editing and history)

        print("/bye ends the conversation, /clear starts a new one, /? shows help", file=sys.stderr)
        while True:
            try:
                text = _read()
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print("\nuse /bye to leave", file=sys.stderr)
                continue
            match text.strip():
                case "":
                    continue
                case "/bye" | "/exit" | "/quit":
                    return
                case "/clear":
                    self.messages = list(self._start)
                    print("the conversation is forgotten", file=sys.stderr)
                case "/?" | "/help":
                    print(HELP, file=sys.stderr)
                case command if re.fullmatch(r"/\w+", command):
                    print(f"there is no command {command}; /? shows those there are", file=sys.stderr)
                case _:
                    self._answer_or_explain(text, after)

    def _answer_or_explain(self, text: str, after: Callable[[Delta], None] | None) -> None:
        from xinheng.core.errors import RequestError

        try:
            answer = self.answer(text)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
        except RequestError as error:
            advice = "; /clear starts a new conversation" if len(self.messages) > len(self._start) else ""
            print(f"xinheng: {error}{advice}", file=sys.stderr)
        else:
            if answer.final is None:
                print("(stopped)", file=sys.stderr)
            elif after is not None:
                after(answer.final)


def _read() -> str:
    """One prompt: a line, or the lines between two of three quotes."""
    line = input(">>> ")
    if not line.lstrip().startswith('"""'):
        return line
    lines = [line.lstrip().removeprefix('"""')]
    while not lines[-1].rstrip().endswith('"""'):
        lines.append(input("... "))
    lines[-1] = lines[-1].rstrip().removesuffix('"""')
    return "\n".join(lines).strip("\n")
