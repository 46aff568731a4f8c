"""Emulated words choose the tokens that cpu:0 chose, position by position, unless the lead was within noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from ....engine import tiny
from ..teacher import chosen, demand

WORDS = [("ascend:910b", "bfloat16"), ("ascend:310p", "float16"), ("ascend:910a", "float16")]
# in bfloat16 cpu:0 itself takes other experts at some positions, which is noise of another kind than that of leads
FAMILY_WORD = [("ascend:910b", "float16")]
FAMILIES = {"qwen3-moe": tiny.QWEN3_MOE, "glm4": tiny.GLM4, "deepseek-v3": tiny.DEEPSEEK_V3}


@pytest.mark.parametrize("chunk", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_a_small_model_token_by_token(tmp_path: Path, chunk: int) -> None:
    path = tiny.write_model(tmp_path / "llama", tiny.LLAMA, seed=1)
    demand(chosen(path, tiny.text_ids(9, seed=4), chunk, WORDS), 32)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_families_token_by_token(tmp_path: Path, family: str) -> None:
    path = tiny.write_model(tmp_path / family, FAMILIES[family], seed=3)
    demand(chosen(path, tiny.text_ids(9, seed=4), 1, FAMILY_WORD), 32)


@pytest.mark.slow
@pytest.mark.parametrize("word", WORDS)
def test_a_downloaded_model(smollm2_path: Path, word: tuple[str, str]) -> None:
    prompt = [504, 3575, 282, 4649, 314, 253]
    demand(chosen(smollm2_path, prompt, 16, [word]), 32)
