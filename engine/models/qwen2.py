"""Qwen 2 and 2.5: llama with biases on queries, keys and values.

Source: `modeling_qwen2.py` of transformers; Qwen2 technical report (2024).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..layers import ModelConfig
from .fields import Fields
from .hugging_face import decoder_config, sliding_layers
from .llama import build

__all__ = ["build", "from_hugging_face"]


def from_hugging_face(config: Mapping[str, Any]) -> ModelConfig:
    """Read a `config.json` of type qwen2."""
    fields = Fields(config, "config.json")
    window = sliding_layers(fields, fields.size("num_hidden_layers"))
    return decoder_config(config, "qwen2", attention_bias=True, **window)
