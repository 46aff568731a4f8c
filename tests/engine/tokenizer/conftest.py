"""Tokenizers for the tests of this folder: the two real ones, and tiny ones made from GGUF-style metadata."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xinheng.engine.tokenizer import Tokenizer
from xinheng.engine.tokenizer.vocabulary import byte_alphabet
from xinheng.engine.weights import open_checkpoint

Metadata = dict[str, Any]


@pytest.fixture(scope="session")
def folder() -> Path:
    return Path(__file__).parent


@pytest.fixture(scope="session")
def golden(folder: Path) -> Any:
    """What the reference implementations gave: tokenizers 0.23, transformers 5.24, the models' own tokenizer.json."""
    return json.loads((folder / "golden.json").read_text())


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(open_checkpoint(smollm2_path).metadata)


@pytest.fixture(scope="session")
def gemma3(gemma3_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(open_checkpoint(gemma3_path).metadata)


def _byte_level(controls: tuple[str, ...] = (), **more: Any) -> Metadata:
    """256 single bytes, a few merges, then the control tokens."""
    spelled = {byte: character for character, byte in byte_alphabet().items()}
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "< |", "| >", "Ġ Ġ"]
    tokens = [spelled[byte] for byte in range(256)] + [merge.replace(" ", "") for merge in merges]
    types = [1] * len(tokens) + [3] * len(controls)
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*tokens, *controls],
        "token_type": types,
        "merges": merges,
        **more,
    }
    return {name if "." in name else f"tokenizer.ggml.{name}": value for name, value in metadata.items()}


def _sentencepiece(extra: tuple[tuple[str, float, int], ...] = (), **more: Any) -> Metadata:
    """<unk>, <s>, </s>, 256 bytes, some pieces with scores, then `extra` (spelling, score, type)."""
    pieces = ["▁", "h", "e", "l", "o", "w", "r", "d", "he", "ll", "hell", "hello", "▁hello", "▁w", "é"]
    table = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    table += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    table += [(piece, float(-rank), 1) for rank, piece in enumerate(pieces)]
    table += extra
    metadata = {
        "model": "llama",
        "tokens": [text for text, _, _ in table],
        "scores": [score for _, score, _ in table],
        "token_type": [kind for _, _, kind in table],
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }
    return {name if "." in name else f"tokenizer.ggml.{name}": value for name, value in metadata.items()}


@pytest.fixture(scope="session")
def byte_level() -> Callable[..., Metadata]:
    return _byte_level


@pytest.fixture(scope="session")
def sentencepiece() -> Callable[..., Metadata]:
    return _sentencepiece
