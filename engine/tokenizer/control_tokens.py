"""Control tokens: the ids that text of a user must never turn into, and how template text is cut at their spellings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ControlToken:
    """A token that stands for structure, not for text.

    `hidden`: left out of decoded text unless asked for; tool and reasoning marks are control tokens but stay visible.
    `lstrip` / `rstrip`: the token swallows white space on that side. `single_word`: only between non-word characters.
    """

    id: int
    text: str
    hidden: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


END_OF_TURN = frozenset(
    {
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|return|>"),
        *(
            "<|call|>",
            "<|calls|>",
            "<|flush|>",
            "<end_of_turn>",
            "<turn|>",
            "<end_of_utterance>",
            "<｜end▁of▁sentence｜>",
        ),
        *("</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~["),
    }
)
"""Control tokens after which, by convention, the model's turn is over (ggml-org/llama.cpp, `llama-vocab.cpp`)."""

ALWAYS_CONTROL = {"<|im_start|>"} | {name for name in END_OF_TURN if name.startswith(("<|", "<｜", "<end_of_"))}
"""Spellings that are control tokens even where a file lists them as common pieces (01-ai/Yi#223)."""

_MISLABELLED = ("<pad>", "<mask>", "<2mass>", "[@BOS@]", "[multimodal]", "<start_of_image>", "<end_of_image>")
_BRACKETS = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


def looks_control(text: str) -> bool:
    """Whether an added token is a control token by its spelling, though its file calls it plain.

    Many files do (DeepSeek's `<｜User｜>`, Gemma's `<unused0>`); the rule is that of llama.cpp's converter.
    """
    if text in _MISLABELLED:
        return True
    return any(text.startswith(a) and text.endswith(b) and len(text) > len(a) + len(b) for a, b in _BRACKETS)


def is_markup(text: str) -> bool:
    """Whether a token is spelled like a tag: such an added token is control if the chat template writes it."""
    return len(text) > 2 and (text[0], text[-1]) in {("<", ">"), ("[", "]")}


def ends_turn(names: Iterable[str]) -> set[str]:
    """Those of a vocabulary's control tokens that end a turn by convention.

    Harmony-like vocabularies end messages with `<|end|>` and turns with `<|return|>` or `<|call|>`: the first is no
    stop there. GLM models stop by opening the next role, `<|user|>` or `<|observation|>`.
    """
    present = set(names)
    stops = present & END_OF_TURN
    if {"<|return|>", "<|call|>"} <= present or {"<|flush|>", "<|calls|>"} <= present:
        stops.discard("<|end|>")
    if "<|observation|>" in present:
        stops |= present & {"<|user|>", "<|observation|>"}
    return stops


class ControlSplitter:
    """Finds control tokens in text, leftmost first and the longest of those that begin together.

    Each position costs one look at its character and, if a token begins with it, one slice per distinct token length.
    """

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        self._tokens: Mapping[str, ControlToken] = {token.text: token for token in tokens if token.text}
        lengths: dict[str, set[int]] = {}
        for text in self._tokens:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        first = "".join(re.escape(character) for character in sorted({head[0] for head in self._lengths}))
        self._first = re.compile(f"[{first}]" if first else "(?!)")

    def split(self, text: str) -> Iterator[str | ControlToken]:
        """The ordinary runs (never empty) and control tokens of `text` in order; spellings add up to `text`."""
        begin = 0
        for candidate in self._first.finditer(text):
            position = candidate.start()
            token = self._match(text, position) if position >= begin else None
            if token is None:
                continue
            if position > begin:
                yield text[begin:position]
            yield token
            begin = position + len(token.text)
        if begin < len(text):
            yield text[begin:]

    def _match(self, text: str, position: int) -> ControlToken | None:
        for head in (text[position : position + 2], text[position]):
            for length in self._lengths.get(head, ()):
                token = self._tokens.get(text[position : position + length])
                if token is not None and not (token.single_word and _inside_word(text, position, length)):
                    return token
        return None


def _inside_word(text: str, position: int, length: int) -> bool:
    before, after = text[position - 1 : position], text[position + length : position + length + 1]
    return any(character.isalnum() or character == "_" for character in before + after)
