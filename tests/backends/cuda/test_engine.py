"""Tiny models through the engine on interpreted kernels: the ids of the CPU, and nothing moved to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ...engine import tiny
from ...engine.tiny import greedy, open_llm, text_ids

pytest.importorskip("triton")

PROMPTS = [text_ids(11, seed=4), text_ids(3, seed=5)]


def answers(folder: Path, device: str, tokens: int) -> list[tuple[int, ...]]:
    """The ids of two prompts at once, from an engine in a process of its own."""
    with open_llm(folder, device, runner="subprocess") as llm:
        return [output.token_ids for output in llm.generate(PROMPTS, greedy(tokens))]


def test_a_llama_gives_the_ids_of_the_cpu(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "llama", tiny.LLAMA, seed=1)
    made = [answers(folder, device, 4) for device in ("cpu:0", "cuda:interpreted")]
    assert made[0] == made[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GEMMA3", "QWEN3_MOE", "DEEPSEEK_V3"])
def test_other_families_too(tmp_path: Path, name: str) -> None:
    config: dict[str, Any] = getattr(tiny, name)
    folder = tiny.write_model(tmp_path / "model", config, seed=2)
    made = [answers(folder, device, 6) for device in ("cpu:0", "cuda:interpreted")]
    assert made[0] == made[1]
