"""Cutting text at control tokens."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from xinheng.engine.tokenizer.control_tokens import ControlSplitter, ControlToken, looks_control

FAST = settings(deadline=None)
WORDS = st.lists(st.text("<|a", min_size=1, max_size=4), unique=True, min_size=1, max_size=6)


def naive(texts: list[str], text: str) -> list[str]:
    parts, run, position = [], "", 0
    while position < len(text):
        match = max((word for word in texts if text.startswith(word, position)), key=len, default=None)
        if match is None:
            run += text[position]
            position += 1
            continue
        parts += [run, match] if run else [match]
        run = ""
        position += len(match)
    return [*parts, run] if run else parts


@FAST
@given(WORDS, st.data())
def test_leftmost_longest(texts: list[str], data: st.DataObject) -> None:
    pieces = st.lists(st.sampled_from([*texts, "<", "|", "a", "b"]), max_size=12)
    text = "".join(data.draw(pieces))
    splitter = ControlSplitter(ControlToken(index, word) for index, word in enumerate(texts))
    parts = list(splitter.split(text))
    assert [part if isinstance(part, str) else part.text for part in parts] == naive(texts, text)
    for part in parts:
        assert isinstance(part, str) or texts[part.id] == part.text


def test_the_longest_of_tokens_that_begin_together() -> None:
    splitter = ControlSplitter(ControlToken(index, word) for index, word in enumerate(["<|", "<|a", "<|a|>", "<"]))
    assert [part.id for part in splitter.split("<|<|a<|a|><") if not isinstance(part, str)] == [0, 1, 2, 3]


def test_linear_on_hostile_text() -> None:
    splitter = ControlSplitter(ControlToken(index, f"<|reserved_{index}|>") for index in range(1000))
    splitter = ControlSplitter([*splitter._tokens.values(), ControlToken(1000, "[END]")])
    text = "<|reserved_" * 20_000 + "[END"
    begin = time.process_time()
    assert list(splitter.split(text)) == [text]
    assert time.process_time() - begin < 2


def test_single_word() -> None:
    splitter = ControlSplitter([ControlToken(7, "NOW", single_word=True)])
    assert [isinstance(part, str) for part in splitter.split("NOW NOWx xNOW _NOW (NOW)")] == [False, True, False, True]


def test_spellings_that_look_control() -> None:
    assert all(map(looks_control, ["<|im_start|>", "<｜User｜>", "<unused12>", "<pad>", "<start_of_image>"]))
    assert not any(map(looks_control, ["<|>", "<||>", "<b>", "   ", "<think>", "|>", "a<|b|>"]))
