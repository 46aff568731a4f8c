"""Model builders: one module per architecture, named after its `model_type`; each makes a graph from a config."""

from __future__ import annotations

from .config import ModelConfig
from .model import Model, open_model
from .program import ModelProgram

__all__ = ["Model", "ModelConfig", "ModelProgram", "open_model"]
