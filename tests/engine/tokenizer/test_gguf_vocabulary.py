"""Vocabularies from GGUF metadata: what each key does, and what a file without sense raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers.models import BPE

from xinheng.core.errors import ModelError
from xinheng.engine.tokenizer import Tokenizer, gguf_vocabulary
from xinheng.engine.tokenizer.gguf_vocabulary import merges_from_scores

Make = Callable[..., dict[str, Any]]
KEY = "tokenizer.ggml."


def pieces(tokenizer: Tokenizer, text: str, **options: bool) -> list[bytes]:
    return [tokenizer.token_bytes(index, skip_special=False) for index in tokenizer.encode(text, **options)]


def test_byte_level_merges(byte_level: Make) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    assert pieces(tokenizer, "hello w") == [b"hello", b" w"]
    assert pieces(tokenizer, "é") == [b"\xc3", b"\xa9"]


def test_arrays_may_be_numpy(byte_level: Make, sentencepiece: Make) -> None:
    metadata = byte_level(("<|a|>",))
    metadata[KEY + "token_type"] = np.array(metadata[KEY + "token_type"], np.int32)
    assert Tokenizer.from_gguf(metadata).encode("<|a|>", special=True) == [264]
    metadata = sentencepiece()
    metadata[KEY + "scores"] = np.array(metadata[KEY + "scores"], np.float32)
    assert pieces(Tokenizer.from_gguf(metadata), "hello") == [b" hello"]


def test_unknown_pretokenizer_names_itself_and_the_known_ones(byte_level: Make) -> None:
    with pytest.raises(ModelError, match=r"'qwen99'.*did you mean.*deepseek-v3.*llama-bpe"):
        Tokenizer.from_gguf(byte_level(pre="qwen99"))


def test_missing_pretokenizer_is_no_default(byte_level: Make) -> None:
    metadata = byte_level()
    del metadata[KEY + "pre"]
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre"):
        Tokenizer.from_gguf(metadata)
    assert pieces(Tokenizer.from_gguf(metadata, pre="smollm"), "12") == [b"1", b"2"]


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "none", None])
def test_other_tokenizer_models_are_refused(model: str | None) -> None:
    with pytest.raises(ModelError, match=rf"{model!r}.*tokenizer\.json"):
        Tokenizer.from_gguf({KEY + "model": model})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"token_type": [1, 1]}, "token_type has 2 entries for 264"),
        ({"merges": ["h e", "xy"]}, "'xy'"),
        ({"merges": ["h x"]}, "do not fit"),
        ({"eos_token_id": 9999}, "eos_token_id is 9999"),
    ],
)
def test_broken_byte_level_tables(byte_level: Make, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf(byte_level(**change))


def test_broken_sentencepiece_tables(sentencepiece: Make) -> None:
    with pytest.raises(ModelError, match="scores has 1 entries"):
        Tokenizer.from_gguf(sentencepiece(scores=[0.0]))
    with pytest.raises(ModelError, match="'hello' twice"):
        Tokenizer.from_gguf(sentencepiece(extra=(("hello", -9.0, 1),)))
    with pytest.raises(ModelError, match="'<0xZZ>'"):
        Tokenizer.from_gguf(sentencepiece(extra=(("<0xZZ>", 0.0, 6),)))


def test_no_merge_may_build_a_control_token(byte_level: Make) -> None:
    metadata = byte_level(("<|", "hello!"))
    tokens = metadata[KEY + "tokens"]
    double = tokens.index("<|")
    del tokens[double], metadata[KEY + "token_type"][double]
    metadata[KEY + "merges"].append("hello !")
    tokenizer = Tokenizer.from_gguf(metadata)
    assert pieces(tokenizer, "<|") == [b"<", b"|"]
    assert pieces(tokenizer, "hello!") == [b"hello", b"!"]
    assert tokenizer.encode("hello!", special=True) == [tokenizer.id("hello!")]


def test_a_whole_piece_that_is_a_control_token_stays_text(byte_level: Make) -> None:
    """With `ignore_merges` a piece found in the vocabulary is taken without merging."""
    tokenizer = Tokenizer.from_gguf(byte_level(("STOP",), pre="llama-bpe"))
    assert pieces(tokenizer, "STOP") == [b"S", b"T", b"O", b"P"]
    assert tokenizer.encode("STOP", special=True) == [tokenizer.id("STOP")]


def test_ignore_merges_takes_whole_pieces(byte_level: Make) -> None:
    metadata = byte_level(("zebra",))
    metadata[KEY + "token_type"][-1] = 1
    assert len(Tokenizer.from_gguf(metadata).encode("zebra")) == 5
    metadata[KEY + "pre"] = "llama-bpe"
    assert pieces(Tokenizer.from_gguf(metadata), "zebra") == [b"zebra"]


def user_defined(byte_level: Make, *texts: str, **more: Any) -> Tokenizer:
    metadata = byte_level(texts, **more)
    metadata[KEY + "token_type"][-len(texts) :] = [4] * len(texts)
    return Tokenizer.from_gguf(metadata)


def test_plain_added_tokens_are_text_and_matched_first(byte_level: Make) -> None:
    tokenizer = user_defined(byte_level, "   ", "<b>")
    assert pieces(tokenizer, "a   <b>") == [b"a", b"   ", b"<b>"]
    assert tokenizer.decode(tokenizer.encode("a   <b>")) == "a   <b>"


def test_tags_the_template_writes_are_control_but_visible(byte_level: Make) -> None:
    template = "{{ '<tool_call>' }} /nothink"
    tokenizer = user_defined(
        byte_level, "<tool_call>", "<b>", "/nothink", "<|fim|>", **{"tokenizer.chat_template": template}
    )
    call, bold, word, fim = (tokenizer.id(text) for text in ("<tool_call>", "<b>", "/nothink", "<|fim|>"))
    assert call not in tokenizer.encode("<tool_call>")
    assert fim not in tokenizer.encode("<|fim|>")
    assert tokenizer.encode("<b>/nothink") == [bold, word]
    ids = tokenizer.encode("<tool_call><|fim|>", special=True)
    assert ids == [call, fim]
    assert tokenizer.decode(ids) == "<tool_call>"


def test_stop_ids_are_the_union(byte_level: Make) -> None:
    controls = ("<a>", "<b>", "<c>", "<d>", "<|im_end|>", "<|eot_id|>", "<|other|>")
    tokenizer = Tokenizer.from_gguf(byte_level(controls, eos_token_id=264, eot_token_id=265, eom_token_id=266))
    assert tokenizer.stop_ids == {264, 265, 266, 268, 269}
    assert tokenizer.eos_id == 264


def test_turn_end_listed_as_a_common_piece_stops(sentencepiece: Make) -> None:
    """01-ai/Yi#223: eos is 2, but turns end with <|im_end|>, which the file calls a normal piece."""
    metadata = sentencepiece(extra=(("<|im_end|>", 0.0, 1), ("<|user|>", -1.0, 3), ("<|observation|>", -1.0, 3)))
    tokenizer = Tokenizer.from_gguf(metadata)
    turn = tokenizer.id("<|im_end|>")
    assert turn is not None and turn not in tokenizer.encode("<|im_end|>")
    assert tokenizer.stop_ids == {2, turn, turn + 1, turn + 2}, "GLM stops at the next role"


def test_end_of_message_is_no_stop_in_harmony(byte_level: Make) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(("<|end|>", "<|return|>", "<|call|>")))
    assert tokenizer.stop_ids == {265, 266}
    assert Tokenizer.from_gguf(byte_level(("<|end|>",))).stop_ids == {264}


def test_space_prefix(sentencepiece: Make) -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece())
    assert tokenizer.leading_space and tokenizer.add_bos
    assert pieces(tokenizer, "hello") == [b" hello"]
    assert pieces(tokenizer, "hello</s>hello", special=True) == [b" hello", b"</s>", b" hello"]
    assert tokenizer.decode(tokenizer.encode("hello w")) == "hello w"
    assert tokenizer.decode(tokenizer.encode("  hello")) == "  hello"
    without = Tokenizer.from_gguf(sentencepiece(add_space_prefix=False))
    assert pieces(without, "hello") == [b"hello"]
    assert without.decode(without.encode(" hello")) == " hello"


def test_byte_fallback_and_unknown(sentencepiece: Make) -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece(add_space_prefix=False))
    assert pieces(tokenizer, "é你") == ["é".encode(), b"\xe4", b"\xbd", b"\xa0"]
    assert tokenizer.decode(tokenizer.encode("你好😊")) == "你好😊"
    typed = tokenizer.encode("<0x41>")
    assert tokenizer.decode(typed) == "<0x41>" and 0x41 + 3 not in typed


def test_no_merge_may_build_a_byte_or_an_added_token(sentencepiece: Make) -> None:
    pieces_of = [(piece, -20.0, 1) for piece in ("<", "0", "x", "4", "1", ">", "<0", "x4", "1>", "<0x4", "lo", "rd")]
    extra = (*pieces_of, ("lord", -1000.0, 4))
    tokenizer = Tokenizer.from_gguf(sentencepiece(extra=extra, add_space_prefix=False))
    assert pieces(tokenizer, "<0x41>") == [b"<0x4", b"1>"]
    assert pieces(tokenizer, "lord") == [b"lord"]
    added = tokenizer.id("lord")
    hidden = Tokenizer.from_gguf(sentencepiece(extra=(*pieces_of, ("lord", 0.0, 3)), add_space_prefix=False))
    assert added not in hidden.encode("lord") and pieces(hidden, "lord") == [b"lo", b"rd"]


def test_control_tokens_are_spelled_as_they_are(byte_level: Make) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(("<é>",)))
    assert pieces(tokenizer, "<é>", special=True) == ["<é>".encode()]


def test_white_space_runs_of_gemma(sentencepiece: Make) -> None:
    """Gemma's files list runs as real spaces, user-defined, with a score that says nothing."""
    runs = ((" " * 2, -1000.0, 4), (" " * 3, -1000.0, 4), ("\n", -1000.0, 4))
    tokenizer = Tokenizer.from_gguf(sentencepiece(extra=runs, add_space_prefix=False))
    assert pieces(tokenizer, "hello     w\n") == [b"hello", b"   ", b"  ", b"w", b"\n"]


def test_phi3_control_tokens_swallow_white_space(sentencepiece: Make) -> None:
    extra = (("<|user|>", 0.0, 3), ("<|end|>", 0.0, 3))
    plain, phi3 = (
        Tokenizer.from_gguf(sentencepiece(extra=extra, add_space_prefix=False, **{"general.architecture": name}))
        for name in ("llama", "phi3")
    )
    assert pieces(plain, "<|user|>\nhello<|end|>\n", special=True)[1] == b"\n"
    assert pieces(phi3, "<|user|>\n hello<|end|>\n", special=True) == [b"<|user|>", b"hello", b"<|end|>"]


def test_merges_from_scores_order() -> None:
    pieces = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5, "aa": 6, "caa": 7, "abca": 8}
    scores = [0.0, 0.0, 0.0, -2.0, -1.0, -3.0, -1.0, -4.0, -4.0]
    best = [("b", "c"), ("a", "a"), ("a", "b"), ("ab", "c"), ("a", "bc")]
    assert merges_from_scores(pieces, scores) == [*best, ("abc", "a"), ("c", "aa")], "of one score, the longest left"


def test_tables_of_text_are_made_for_the_first_text(byte_level: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(**tables: Any) -> BPE:
        made.append(len(tables["merges"]))
        return BPE(**tables)

    monkeypatch.setattr(gguf_vocabulary, "BPE", counted)
    metadata = byte_level()
    tokenizer = Tokenizer.from_gguf(metadata)
    letter = tokenizer.id("h")
    assert letter is not None and tokenizer.decode([letter]) == "h"
    assert made == []
    assert pieces(tokenizer, "hello") + pieces(tokenizer, "hello") == [b"hello"] * 2
    assert made == [len(metadata[KEY + "merges"])]


@pytest.mark.parametrize("merge", ["", " ", "h", " h", "h ", "h e l"])
def test_merges_are_checked_before_any_text(byte_level: Make, merge: str) -> None:
    metadata = byte_level()
    metadata[KEY + "merges"].append(merge)
    with pytest.raises(ModelError, match="merge"):
        Tokenizer.from_gguf(metadata)
