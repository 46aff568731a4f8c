"""What tests ask of a model on a device: greedy ids, and the receipt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xinheng.core.receipt import Receipt
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings

from ..engine import tiny

PROMPTS = [tiny.text_ids(7), tiny.text_ids(20, seed=1)]


def greedy_ids(
    model: Path, device: str, tokens: int = 16, prompts: list[Any] | None = None, **runtime: Any
) -> tuple[list[tuple[int, ...]], Receipt]:
    """The ids that follow each prompt on a device, in strict float32, and what ran where."""
    settings = EngineSettings(max_num_batched_tokens=256, max_num_seqs=2, max_model_len=128)
    chosen = RuntimeSettings(device=device, dtype="float32", numerics="strict", **runtime)
    with LLM(model, runtime=chosen, settings=settings) as llm:
        made = llm.generate(PROMPTS if prompts is None else prompts, tiny.greedy(tokens))
        return [output.token_ids for output in made], llm.receipt


def by_op(receipt: Receipt) -> dict[str, tuple[str, str]]:
    """Kernel and device of each op."""
    return {line.op: (line.kernel, line.device) for line in receipt.lines}
