"""Streaming: joined pieces equal the decoded whole, no half characters, stop strings held back and cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xinheng.core.errors import RequestError
from xinheng.engine.tokenizer import Detokenizer, Tokenizer
from xinheng.engine.tokenizer.stop_matcher import StopMatcher

FAST = settings(deadline=None, max_examples=80)
Make = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def bpe(byte_level: Make) -> Tokenizer:
    return Tokenizer.from_gguf(byte_level(("<|end|>", "<|x|>")))


@pytest.fixture(scope="session")
def spm(sentencepiece: Make) -> Tokenizer:
    return Tokenizer.from_gguf(sentencepiece())


def raw(data: bytes) -> list[int]:
    """Ids of single bytes in the byte-level vocabulary."""
    return list(data)


def stream(detokenizer: Detokenizer, chunks: Sequence[Sequence[int]]) -> list[str]:
    return [*(detokenizer.push(chunk) for chunk in chunks), detokenizer.finish()]


def singly(ids: Sequence[int]) -> list[list[int]]:
    return [[index] for index in ids]


@FAST
@given(ids=st.lists(st.integers(0, 266), max_size=30), skip=st.booleans(), sizes=st.lists(st.integers(1, 4)))
def test_byte_level_pieces_add_up(bpe: Tokenizer, ids: list[int], skip: bool, sizes: list[int]) -> None:
    chunks, position = [], 0
    for size in [*sizes, *[1] * len(ids)]:
        chunks.append(ids[position : position + size])
        position += size
    detokenizer = Detokenizer(bpe, skip_special=skip)
    assert "".join(stream(detokenizer, chunks)) == bpe.decode(ids, skip_special=skip) == detokenizer.text


@FAST
@given(ids=st.lists(st.integers(0, 273), max_size=30), skip=st.booleans())
def test_sentencepiece_pieces_add_up(spm: Tokenizer, ids: list[int], skip: bool) -> None:
    detokenizer = Detokenizer(spm, skip_special=skip)
    assert "".join(stream(detokenizer, singly(ids))) == spm.decode(ids, skip_special=skip) == detokenizer.text


@FAST
@given(text=st.text("aé你😊🇨🇳\u0301", max_size=12))
def test_no_piece_holds_half_a_character(bpe: Tokenizer, spm: Tokenizer, text: str) -> None:
    byte_tokens = [byte + 3 for byte in text.encode()]
    for tokenizer, ids in ((bpe, raw(text.encode())), (spm, byte_tokens)):
        pieces = stream(Detokenizer(tokenizer), singly(ids))
        assert "".join(pieces) == text
        assert "\ufffd" not in "".join(pieces)
        assert max(map(len, pieces), default=0) <= 1


def test_chinese_and_emoji_split_at_every_byte(smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    """NVIDIA/TensorRT-LLM#2488."""
    text = "你好😊 — Café 👩‍👩‍👧"
    for tokenizer in (smollm2, gemma3):
        ids = tokenizer.encode(text)
        pieces = stream(Detokenizer(tokenizer), singly(ids))
        assert "".join(pieces) == text
        assert "\ufffd" not in "".join(pieces)


def test_nothing_is_sent_twice(bpe: Tokenizer) -> None:
    """sgl-project/sglang#31598."""
    chunks = [raw(b"A "), raw(b"\xe4\xb8"), raw(b"\x96"), raw(b"ab")]
    assert stream(Detokenizer(bpe), chunks) == ["A ", "", "世", "ab", ""]


@pytest.mark.parametrize("tail", [b"\xe4", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xc3"])
def test_incomplete_tail_comes_once(bpe: Tokenizer, tail: bytes) -> None:
    detokenizer = Detokenizer(bpe)
    assert detokenizer.push(raw(b"ok" + tail)) == "ok"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""
    assert detokenizer.text == "ok\ufffd"


def test_broken_bytes_in_the_middle(bpe: Tokenizer) -> None:
    data = b"a\xffb\xe4\xb8c\xf0\x9fd\xed\xa0\x80e"
    assert "".join(stream(Detokenizer(bpe), singly(raw(data)))) == data.decode(errors="replace")


def test_leading_space(spm: Tokenizer) -> None:
    ids = spm.encode("hello hello")
    assert stream(Detokenizer(spm), singly(ids)) == ["hello", " hello", ""]
    assert stream(Detokenizer(spm, [1]), singly(ids))[0] == "hello", "after a control token, as encoding puts it there"
    assert stream(Detokenizer(spm, spm.encode("w")), singly(ids))[0] == " hello", "after text it is part of the answer"
    assert stream(Detokenizer(spm), [[spm.id("▁")], ids])[:2] == ["", " hello hello"]  # type: ignore[list-item]


def test_hidden_tokens(bpe: Tokenizer) -> None:
    ids = [*raw(b"a"), 264, *raw(b"b")]
    assert "".join(stream(Detokenizer(bpe), singly(ids))) == "ab"
    assert "".join(stream(Detokenizer(bpe, skip_special=False), singly(ids))) == "a<|end|>b"


def test_stop_is_held_back_from_its_first_character(bpe: Tokenizer) -> None:
    """vllm-project/vllm#3574."""
    detokenizer = Detokenizer(bpe, stop=["DEFGHIJ"])
    assert stream(detokenizer, singly(raw(b"ABCDEFGHIJKL"))) == ["A", "B", "C"] + [""] * 10
    assert (detokenizer.stopped, detokenizer.text) == ("DEFGHIJ", "ABC")


def test_stop_inside_one_push(bpe: Tokenizer) -> None:
    detokenizer = Detokenizer(bpe, stop=["stop"])
    assert detokenizer.push(raw(b"go stop now")) == "go "
    assert detokenizer.push(raw(b"more")) == detokenizer.finish() == ""
    assert detokenizer.stopped == "stop"
    kept = Detokenizer(bpe, stop=["stop"], include_stop=True)
    assert kept.push(raw(b"go st")) + kept.push(raw(b"op now")) + kept.finish() == "go stop"


def test_false_start_of_a_stop_is_released(bpe: Tokenizer) -> None:
    detokenizer = Detokenizer(bpe, stop=["aab", "\n\n"])
    assert [detokenizer.push([byte]) for byte in b"aaac\nx"] == ["", "", "a", "aac", "", "\nx"]
    detokenizer.push(raw(b"y\n"))
    assert detokenizer.finish() == "\n"
    assert detokenizer.text == "aaac\nxy\n" and detokenizer.stopped is None


def test_stop_ends_in_the_flushed_tail(bpe: Tokenizer) -> None:
    detokenizer = Detokenizer(bpe, stop=["x\ufffd"])
    assert detokenizer.push(raw(b"ax\xe4")) == "a"
    assert detokenizer.finish() == ""
    assert detokenizer.stopped == "x\ufffd"


def test_first_complete_match_wins(bpe: Tokenizer) -> None:
    for order in (["bcdef", "cd"], ["cd", "bcdef"]):
        detokenizer = Detokenizer(bpe, stop=order)
        assert (detokenizer.push(raw(b"abcdef")), detokenizer.stopped) == ("ab", "cd")
    longest = Detokenizer(bpe, stop=["b", "ab"])
    assert (longest.push(raw(b"xab")), longest.stopped) == ("x", "ab")


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@FAST
@given(
    text=st.text("abé", max_size=25),
    stops=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=4),
    include=st.booleans(),
    sizes=st.lists(st.integers(1, 5), max_size=40),
)
def test_stops_do_not_depend_on_the_chunks(
    bpe: Tokenizer, text: str, stops: list[str], include: bool, sizes: list[int]
) -> None:
    ids, chunks = raw(text.encode()), []
    for size in [*sizes, len(text.encode()) or 1]:
        chunks.append(ids[:size])
        ids = ids[size:]
    expected, stop = reference(text, stops, include)
    detokenizer = Detokenizer(bpe, stop=stops, include_stop=include)
    given_out = ""
    for chunk in chunks:
        given_out += detokenizer.push(chunk)
        assert expected.startswith(given_out), "what was given out is never taken back"
    assert given_out + detokenizer.finish() == expected
    assert detokenizer.stopped == stop


@FAST
@given(text=st.text("ab", max_size=20), stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_more_is_held_back_than_needed(bpe: Tokenizer, text: str, stops: list[str]) -> None:
    detokenizer = Detokenizer(bpe, stop=stops)
    given_out = detokenizer.push(raw(text.encode()))
    if detokenizer.stopped is None:
        held = text[len(given_out) :]
        ends = [text[begin:] for begin in range(len(text))]
        assert held == max((end for end in ends if any(s.startswith(end) for s in stops)), key=len, default="")


def test_matcher_gives_nothing_after_a_match() -> None:
    matcher = StopMatcher(["ab"])
    assert [matcher.push(text) for text in ("xa", "by", "z")] == ["x", "", ""]
    assert (matcher.matched, matcher.flush()) == ("ab", "")


def test_empty_stop_string(bpe: Tokenizer) -> None:
    with pytest.raises(RequestError, match="stop string is empty"):
        Detokenizer(bpe, stop=["x", ""])


def test_one_stop_may_be_given_bare(bpe: Tokenizer) -> None:
    detokenizer = Detokenizer(bpe, stop="ab")
    assert detokenizer.push(raw(b"b ab")) == "b "


def test_long_streams_cost_the_same_per_token(bpe: Tokenizer) -> None:
    """Work is counted in bytes the decoder sees, not in time."""
    detokenizer = Detokenizer(bpe, stop=["zzz"])
    seen = 0

    class Counting:
        def decode(self, data: bytes, final: bool = False) -> str:
            nonlocal seen
            seen += len(data)
            return data.decode()

    detokenizer._decoder = Counting()  # type: ignore[assignment]
    for index in raw(b"ab" * 5000):
        detokenizer.push([index])
    assert seen == 10_000 and len(detokenizer.text) == 10_000
