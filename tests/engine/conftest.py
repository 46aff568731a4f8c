"""The tiny models that tests of the engine run."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import tiny


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of two layers with grouped-query attention."""
    return tiny.write_model(tmp_path_factory.mktemp("models") / "tiny-llama", tiny.LLAMA, seed=1)


@pytest.fixture(scope="session")
def gemma_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gemma3 of seven layers, six of which see eight tokens only."""
    return tiny.write_model(tmp_path_factory.mktemp("models") / "tiny-gemma", tiny.GEMMA3, seed=2)
