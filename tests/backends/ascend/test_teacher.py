"""MindSpore's CPU target chooses cpu:0's tokens, position by position, unless the lead was within noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...engine import tiny
from .teacher import chosen, demand

SPEC = "ascend:cpu@mindspore"
DTYPES = {"float32": 64, "float16": 32, "bfloat16": 32}
"""How many of the 64 positions have a lead beyond noise, at least."""


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(d, marks=pytest.mark.slow) for d in ("float16", "bfloat16"))]
)
def test_a_small_model_token_by_token(tmp_path: Path, dtype: str) -> None:
    path = tiny.write_model(tmp_path / "llama", tiny.LLAMA, seed=1)
    demand(chosen(path, tiny.text_ids(9, seed=4), 12, [(SPEC, dtype)]), DTYPES[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_downloaded_model(smollm2_path: Path, dtype: str) -> None:
    prompt = [504, 3575, 282, 4649, 314, 253]
    demand(chosen(smollm2_path, prompt, 16, [(SPEC, dtype)]), DTYPES[dtype])
