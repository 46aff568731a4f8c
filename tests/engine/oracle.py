"""What transformers says of a tiny model, and how far other logits are from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Logits = NDArray[np.float32]


def load(folder: Path) -> Any:
    """The model in float32, with plain attention."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
        patch.setitem(os.environ, "HF_HUB_DISABLE_PROGRESS_BARS", "1")
        import torch
        from transformers import AutoModelForCausalLM

        auto: Any = AutoModelForCausalLM
        model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True)
        return model.eval()


def logits_of(model: Any, ids: list[int]) -> Logits:
    """Logits float32 [len(ids), vocabulary]."""
    import torch

    with torch.inference_mode():
        logits: Logits = model(torch.tensor([ids])).logits[0].numpy()
    return logits


def expected(folder: Path, ids: list[int]) -> Logits:
    """Logits float32 [len(ids), vocabulary] of the model in a folder."""
    return logits_of(load(folder), ids)


def deviation(got: Logits, want: Logits) -> float:
    """The largest difference, in units of the spread of the logits."""
    assert got.shape == want.shape
    return float(np.abs(got.astype(np.float64) - want).max() / (want.max() - want.min()))
