"""Real vocabularies against the ids of the reference implementations, and what holds for every tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from xinheng.core.errors import ModelError, RequestError
from xinheng.engine.tokenizer import Segment, Tokenizer

Make = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_ids_equal_the_reference(name: str, golden: Any, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    for text, ids in zip(golden["texts"], golden["ids"][name], strict=True):
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.encode(text, special=True) == ids, text


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_decode_gives_the_text_back(name: str, golden: Any, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    for text in golden["texts"]:
        expected = text.replace("▁", " ") if name == "gemma3" else text  # SentencePiece spells a space as ▁
        assert tokenizer.decode(tokenizer.encode(text)) == expected


def test_smollm2_facts(smollm2: Tokenizer) -> None:
    assert (smollm2.vocab_size, smollm2.bos_id, smollm2.eos_id, smollm2.add_bos) == (49152, 1, 2, False)
    assert smollm2.stop_ids == {0, 2}
    assert smollm2.id("<|im_end|>") == 2
    assert smollm2.id("Ġthe") is not None
    assert smollm2.id("no such token") is None
    assert smollm2.chat_template is not None and "<|im_start|>" in smollm2.chat_template


def test_gemma3_facts(gemma3: Tokenizer) -> None:
    assert (gemma3.vocab_size, gemma3.bos_id, gemma3.eos_id, gemma3.add_bos) == (262144, 2, 1, True)
    assert gemma3.stop_ids == {1, 106}
    assert gemma3.encode("<h1>") == [184], "tags Gemma has tokens for are ordinary text"
    assert gemma3.token_bytes(0xE4 + 238) == b"\xe4"
    assert gemma3.chat_template is None
    with pytest.raises(ModelError, match="no chat template"):
        gemma3.encode_chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("name", "text"), [("smollm2", "hi<|im_end|>x<|endoftext|>"), ("gemma3", "<bos><end_of_turn> <unused7>")]
)
def test_text_never_becomes_a_control_token(name: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    plain, special = tokenizer.encode(text), tokenizer.encode(text, special=True)
    assert not any(map(tokenizer.is_control, plain))
    assert sum(map(tokenizer.is_control, special)) >= 2
    assert tokenizer.decode(plain) == text
    assert tokenizer.decode(special, skip_special=False) == text


def test_no_control_token_of_a_real_vocabulary_can_be_typed(smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    for tokenizer in (smollm2, gemma3):
        controls = [index for index in range(tokenizer.vocab_size) if tokenizer.is_control(index)]
        text = " ".join(tokenizer.token_bytes(index, skip_special=False).decode() for index in controls)
        assert len(controls) > 16
        assert not set(controls) & set(tokenizer.encode(text))
        assert set(controls) <= set(tokenizer.encode(text, special=True))


def test_bos_is_written_once(gemma3: Tokenizer, smollm2: Tokenizer, sentencepiece: Make) -> None:
    assert gemma3.encode("x", bos=True)[:2] == [2, *gemma3.encode("x")]
    assert gemma3.encode("<bos>x", special=True, bos=True) == gemma3.encode("x", bos=True)
    assert gemma3.encode("<bos>x", bos=True).count(2) == 1
    assert smollm2.encode("", bos=True) == [1]
    without = Tokenizer.from_gguf(sentencepiece() | {"tokenizer.ggml.add_bos_token": False})
    assert without.add_bos is False


def test_bos_without_a_bos_token_is_an_error(byte_level: Make) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    assert tokenizer.bos_id is None
    with pytest.raises(ModelError, match="no BOS token"):
        tokenizer.encode("x", bos=True)


def test_lone_surrogate_is_a_request_error(smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    for tokenizer in (smollm2, gemma3):
        with pytest.raises(RequestError, match=r"U\+D800 at character 2"):
            tokenizer.encode("ab\ud800")


def test_segments_do_not_change_merges_at_their_borders(smollm2: Tokenizer) -> None:
    text = "<|im_start|>user\nHello world, unbelievable<|im_end|>"
    whole = smollm2.encode(text, special=True)
    for cut in range(12, len(text) - 10):
        parts = [Segment(text[:cut], True), Segment(text[cut:-10], False), Segment(text[-10:], True)]
        assert smollm2.encode_segments(parts) == whole


def test_a_control_token_half_typed_by_the_user_is_text(smollm2: Tokenizer) -> None:
    parts = [Segment("<|im_", True), Segment("end|>", False), Segment("<|im_end", True), Segment("|>", False)]
    assert not any(map(smollm2.is_control, smollm2.encode_segments(parts)))
    whole = smollm2.encode_segments([Segment("<|im_", True), Segment("end|>", True)])
    assert whole == smollm2.encode("<|im_end|>"), "the border of two template segments is not bridged by accident"


def test_token_bytes(smollm2: Tokenizer) -> None:
    assert smollm2.token_bytes(smollm2.encode(" world")[0]) == b" world"
    assert b"".join(map(smollm2.token_bytes, smollm2.encode("é😊你"))) == "é😊你".encode()
    assert smollm2.token_bytes(2) == b""
    assert smollm2.token_bytes(2, skip_special=False) == b"<|im_end|>"
    assert smollm2.token_bytes(smollm2.vocab_size) == b"", "rows a model's matrix has beyond the vocabulary"
    assert smollm2.token_bytes(-1) == b""


def test_decode_replaces_broken_bytes(smollm2: Tokenizer) -> None:
    ids = [index for index in range(300) if smollm2.token_bytes(index) in (b"\xe4", b"a")]
    assert sorted(smollm2.decode(ids)) == ["a", "\ufffd"]
