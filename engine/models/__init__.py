"""Model builders: one module per architecture, named after its `model_type`; each makes a graph from a config."""

from __future__ import annotations

from ..layers import ModelConfig, ModelProgram
from .model import Model, open_model

__all__ = ["Model", "ModelConfig", "ModelProgram", "open_model"]
