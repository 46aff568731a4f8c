"""What a model builder needs to know of a model, read from `config.json` or from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xinheng.core.errors import ModelError

from .rope import Rope


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and choices of a decoder model; names are those of Hugging Face configs.

    `layer_types` says per layer "full_attention" or "sliding_attention"; `rope` and `local_rope` belong to these.
    `attention_scale` multiplies q.k. `interleaved` is the rotary pairing of the stored weights.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope: Rope
    layer_types: tuple[str, ...]
    local_rope: Rope | None = None
    sliding_window: int | None = None
    attention_scale: float = 0.0
    interleaved: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    attn_softcap: float | None = None
    final_softcap: float | None = None
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None

    def window(self, layer: int) -> int | None:
        """The sliding window of a layer, None for full attention."""
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None


class Fields:
    """Typed access to a mapping of settings; a missing or unfit one is a ModelError naming it."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def get(self, *names: str, default: Any = ...) -> Any:
        """The first of several spellings that is present and not null."""
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if default is ...:
            raise ModelError(
                f"{self.where} has no {' or '.join(map(repr, names))}; the model cannot be built without it"
            )
        return default

    def size(self, *names: str, default: Any = ...) -> int:
        """A positive integer."""
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ModelError(f"{self.where}: {names[0]} is {value!r}, it must be a positive integer")
        return value

    def number(self, *names: str, default: Any = ...) -> float:
        """A finite number."""
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelError(f"{self.where}: {names[0]} is {value!r}, it must be a finite number")
        return float(value)

    def optional_number(self, *names: str) -> float | None:
        """A finite number, or None if absent."""
        return self.number(*names) if self.get(*names, default=None) is not None else None


def layer_pattern(layers: int, every: int) -> tuple[str, ...]:
    """Sliding layers with each `every`-th one full."""
    return tuple("full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers))


def ids(value: Any) -> tuple[int, ...]:
    """A token id, a list of them or nothing, as a tuple."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)
