"""The splitting rules against the pieces that the models' own tokenizer.json make."""

from __future__ import annotations

from typing import Any

import pytest

from xinheng.core.errors import ModelError
from xinheng.engine.tokenizer.pretokenizers import PRETOKENIZERS, pretokenizer
from xinheng.engine.tokenizer.vocabulary import byte_alphabet

NAMES = ["smollm", "gpt-2", "llama-bpe", "qwen2", "deepseek-v3", "gpt-4o", "tekken"]
BYTES = byte_alphabet()


def cut(name: str, text: str) -> list[str]:
    pieces = [piece for piece, _ in pretokenizer(name).build().pre_tokenize_str(text)]
    return [bytes(BYTES[character] for character in piece).decode() for piece in pieces]


@pytest.mark.parametrize("name", NAMES)
def test_cuts_equal_those_of_the_model(name: str, golden: Any) -> None:
    for text, ends in zip(golden["texts"], golden["cuts"][name], strict=True):
        pieces = cut(name, text)
        lengths = [len(piece) for piece in pieces]
        assert [sum(lengths[: count + 1]) for count in range(len(pieces))] == ends, text


@pytest.mark.parametrize("name", sorted(PRETOKENIZERS))
def test_every_rule_compiles_and_loses_nothing(name: str, golden: Any) -> None:
    for text in golden["texts"]:
        assert "".join(cut(name, text)) == text


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("default", "It's $12345.", ["It", "'", "s", " ", "$", "123", "45", "."]),
        ("falcon", "a`b 1234", ["a", "`", "b", " ", "123", "4"]),
        ("glm4", "I'LL 12345", ["I", "'LL", " ", "123", "45"]),
        ("chatglm-bpe", "你好 12345", ["你好", " ", "123", "45"]),
        ("deepseek-llm", "Hello 你好\n 12", ["Hello", " ", "你好", "\n", " ", "12"]),
        ("deepseek-coder", "x=1 12", ["x", "=", "1", " ", "1", "2"]),
        ("qwen35", "हिन्दी 12", ["हिन्दी", " ", "1", "2"]),
        ("seed-coder", "a;\n12", ["a", ";", "\n", "1", "2"]),
        ("bailingmoe", "it's\n\n", ["it", "'s", "\n\n"]),
        ("viking", "a, b12", ["a", ",", " b", "1", "2"]),
    ],
)
def test_rules_without_a_reference_file(name: str, text: str, pieces: list[str]) -> None:
    assert cut(name, text) == pieces


def test_what_else_follows_from_the_name() -> None:
    assert {name for name, rule in PRETOKENIZERS.items() if rule.ignore_merges} >= {"llama-bpe", "tekken", "glm4"}
    assert pretokenizer("qwen2").normalizer() is not None
    assert pretokenizer("llama-bpe").normalizer() is None
    assert pretokenizer("llama-bpe").add_bos and not pretokenizer("qwen2").add_bos


def test_unknown_name() -> None:
    with pytest.raises(ModelError, match=r"unknown pre-tokenizer 'llama-bpc'.*did you mean 'llama-bpe'.*known: "):
        pretokenizer("llama-bpc")
