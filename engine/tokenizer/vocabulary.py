"""What any tokenizer file comes down to: the spelling of each id, the control tokens, and encoders of plain text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Literal

from tokenizers import Tokenizer as Encoder

from .control_tokens import ControlToken, is_markup, looks_control

Spelling = Literal["byte_level", "sentencepiece"]


def byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes 0..255 in byte-level vocabularies (GPT-2's `bytes_to_unicode`, inverted)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    characters = [*printable, *range(256, 256 + len(others))]
    return {chr(character): byte for character, byte in zip(characters, printable + others, strict=True)}


_BYTES = byte_alphabet()


class TextEncoder:
    """Ids of ordinary text. The library's tables are made for the first text: a prompt of ids needs none.

    `make` must not fail for what is wrong with a file: whoever reads the file has checked its tables before.
    """

    def __init__(self, make: Callable[[], Encoder]) -> None:
        self._make: Callable[[], Encoder] | None = make
        self._encoder: Encoder | None = None
        self._lock = Lock()

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; TypeError if it is not Unicode."""
        encoder = self._encoder or self._made()
        ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        return ids

    def _made(self) -> Encoder:
        with self._lock:
            if self._make is not None:
                self._encoder, self._make = self._make(), None  # and the tables it was made of go
        assert self._encoder is not None
        return self._encoder


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer's tables.

    `tokens`: spelling by id, "" where the file has a hole. `literal`: ids spelled as the text itself. `byte_tokens`:
    ids of single bytes, for characters without a token. `head` encodes ordinary text at the start of a prompt, `tail`
    ordinary text after a control token; neither knows the control tokens, so no text can become one.
    `leading_space`: encoding puts a space in front, decoding takes it away.
    """

    tokens: tuple[str, ...]
    spelling: Spelling
    head: TextEncoder
    tail: TextEncoder
    controls: tuple[ControlToken, ...]
    literal: frozenset[int] = frozenset()
    byte_tokens: dict[int, int] = field(default_factory=dict)
    leading_space: bool = False
    bos_id: int | None = None
    eos_id: int | None = None
    stop_ids: frozenset[int] = frozenset()
    add_bos: bool = False
    chat_template: str | None = None

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id by spelling; of two equal spellings the first."""
        found = {token: index for index, token in reversed(list(enumerate(self.tokens))) if token}
        found.update((control.text, control.id) for control in self.controls)
        return found

    def token_bytes(self, index: int) -> bytes:
        """The bytes that token `index` stands for; none where the table has a hole or ends."""
        if not 0 <= index < len(self.tokens):
            return b""
        if index in self.byte_tokens:
            return bytes([self.byte_tokens[index]])
        token = self.tokens[index]
        if self.spelling == "sentencepiece":
            return token.replace("\u2581", " ").encode()
        if index in self.literal or not _BYTES.keys() >= set(token):
            return token.encode()
        return bytes(_BYTES[character] for character in token)


def is_control(text: str, *, special: bool, chat_template: str | None) -> bool:
    """Whether an added token is out of reach of user text.

    `special` is what the file says. A plain added token is control if its spelling says so, or if it is a tag that the
    chat template itself writes (`<tool_call>`, `<think>`). Others (`<table>`, runs of spaces) are ordinary text.
    """
    return special or looks_control(text) or (is_markup(text) and text in (chat_template or ""))
