"""`docs/write-a-backend.md`, followed step by step: files are written, commands run, and outputs are what comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import ROOT
from .reader import Reader

PAGE = ROOT / "docs" / "write-a-backend.md"


@pytest.fixture
def reader(tmp_path: Path, tiny_llama: Path) -> Reader:
    return Reader(tmp_path, tiny_llama)


def test_the_page_can_be_followed(reader: Reader) -> None:
    page = PAGE.read_text(encoding="utf-8")
    reader.follow(page)
    assert len(reader.done) == page.count("```") // 2
    assert {"toml", "python", "sh", "text"} == set(reader.done)
    # what came out of it says what the processor says
    ids = """
import sys
from pathlib import Path
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings, SamplingParams
for device in ("cpu:0", "acme:0"):
    runtime = RuntimeSettings(device=device, dtype="float32", fallback="cpu", numerics="strict")
    with LLM(Path(sys.argv[1]), runtime=runtime, settings=EngineSettings(max_model_len=128, max_num_seqs=2)) as llm:
        wanted = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
        print([output.token_ids for output in llm.generate([[5, 9, 42, 7], [77] * 20], wanted)])
"""
    reader.python("-c", ids, str(reader.model))
    first, second = reader.printed.splitlines()
    assert first == second


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("`check.py`:\n\n```python\nprint(1)\n```\n\nand so:\n\n```text\n2\n```\n", "where the page has"),
        ("`check.py`:\n\n```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("somewhere:\n\n```python\n1\n```\n", "names no file"),
        ("now:\n\n```sh\nxinheng nonsense\n```\n", "No such command"),
    ],
)
def test_a_page_that_is_wrong_is_noticed(reader: Reader, page: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        reader.follow(page)
