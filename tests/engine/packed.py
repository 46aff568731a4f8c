"""Tiny models whose matrices are packed: what a GGUF file of any architecture would give, without writing one."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.weights import packed
from xinheng.core.hal import WeightSource
from xinheng.engine.models import model
from xinheng.engine.weights import Checkpoint, open_checkpoint

SCHEMES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
"""What the matrices are packed in, by a hash of their names; heads and embeddings are q8_0, as in most files."""


class PackedCheckpoint:
    """A checkpoint whose matrices are packed where their columns fill blocks; routers stay as they are."""

    def __init__(self, inner: Checkpoint) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __contains__(self, name: object) -> bool:
        return name in self._inner

    def source(self, name: str) -> WeightSource:
        """A matrix, packed if it can be."""
        source = self._inner.source(name)
        if source.shape[-1] % 32 or name.endswith("mlp.gate.weight"):
            return source
        whole = name.startswith(("model.embed_tokens", "lm_head"))
        coding = "q8_0" if whole else SCHEMES[zlib.crc32(name.encode()) % len(SCHEMES)]
        values = self._inner.array(name).astype(np.float64)
        return packed(name, values, [(coding, len(values))])


def pack_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models be opened with packed matrices from now on."""

    def opened(path: Path | str) -> Any:
        return PackedCheckpoint(open_checkpoint(path))

    monkeypatch.setattr(model, "open_checkpoint", opened)
