"""A complete language model of a few kilobytes with random weights: it answers nonsense, in no time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "<|end|>"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}" + END + "{% endfor %}assistant: "
HIDDEN, INNER, HEADS, HEAD_DIM, LAYERS = 32, 64, 2, 16, 2


def write_example_model(folder: Path) -> Path:
    """Write a llama with a byte-level tokenizer and a chat template into `folder`, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    size = len(alphabet) + 1
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": size,
        "max_position_embeddings": 256,
        "eos_token_id": len(alphabet),
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    described = {"eos_token": END, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    save_file(_tensors(size), folder / "model.safetensors")
    return folder


def _tensors(vocabulary: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    wide = HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (HIDDEN,),
            f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}.self_attn.o_proj.weight": (HIDDEN, wide),
            f"{prefix}.mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (INNER, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (HIDDEN, INNER),
        }
        shapes |= {f"{prefix}.self_attn.{name}_proj.weight": (wide, HIDDEN) for name in "qkv"}
    random = np.random.default_rng(0)
    return {
        name: np.ones(shape, np.float32) if len(shape) == 1 else random.normal(0, 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
