"""Checkpoints on disk (GGUF, safetensors) as lazy, sliceable weights under Hugging Face names."""

from __future__ import annotations

from .checkpoint import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
