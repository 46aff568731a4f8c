"""What the metadata of most GGUF files say in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..layers import ModelConfig, Rope
from ..weights import Checkpoint
from .fields import Fields, ids


def gguf_config(
    metadata: Mapping[str, Any], checkpoint: Checkpoint, architecture: str, *, head_dim: int, rope: Rope, **given: Any
) -> ModelConfig:
    """Read GGUF metadata in the standard words; `given` are further fields of `ModelConfig`, which win over these.

    Raises:
        ModelError: a value is missing or impossible.
    """
    fields = Fields(metadata, "GGUF metadata")
    heads, layers = fields.size(f"{architecture}.attention.head_count"), fields.size(f"{architecture}.block_count")
    values: dict[str, Any] = {
        "model_type": architecture,
        "hidden_size": fields.size(f"{architecture}.embedding_length"),
        "intermediate_size": fields.size(f"{architecture}.feed_forward_length"),
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": fields.size(f"{architecture}.attention.head_count_kv", default=heads),
        "head_dim": head_dim,
        "vocab_size": checkpoint.shape("model.embed_tokens.weight")[0],
        "max_position": fields.size(f"{architecture}.context_length"),
        "rms_norm_eps": fields.number(f"{architecture}.attention.layer_norm_rms_epsilon"),
        "rope": rope,
        "layer_types": ("full_attention",) * layers,
        "attention_scale": head_dim**-0.5,
        "tie_word_embeddings": "lm_head.weight" not in checkpoint,
        "eos_ids": ids(metadata.get("tokenizer.ggml.eos_token_id")),
        "bos_id": metadata.get("tokenizer.ggml.bos_token_id"),
    }
    return ModelConfig(**values | given)
