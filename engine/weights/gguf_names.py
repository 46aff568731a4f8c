"""Hugging Face names of the tensors in GGUF files, as one table per architecture.

Source: `TENSOR_NAMES` and the per-architecture lists in the `gguf` package's `constants.py` and `tensor_mapping.py`.
The names say where a tensor goes, not what the converter did to its values: in `llama` files the rows of q and k are
permuted for interleaved rotary pairs, and in `gemma3` files every norm weight already holds the +1 of (1 + w).

To add an architecture, add a row to `ARCHITECTURES`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MODEL: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

LAYER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

HEAD_NORMS: Mapping[str, str] = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}

ARCHITECTURES: Mapping[str, Mapping[str, str]] = {
    "llama": {**LAYER, "ffn_norm": "post_attention_layernorm"},
    "qwen3": {**LAYER, **HEAD_NORMS, "ffn_norm": "post_attention_layernorm"},
    "gemma3": {
        **LAYER,
        **HEAD_NORMS,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}

_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]*)\.(\w+)\.(weight|bias)", re.ASCII)
_WHOLE = re.compile(r"(\w+)\.(weight|bias)", re.ASCII)


def hugging_face_name(architecture: str, name: str) -> str:
    """The Hugging Face name of GGUF tensor `name`, such as "model.layers.3.self_attn.q_proj.weight".

    A tensor without a Hugging Face counterpart ("rope_freqs.weight"), and every tensor of an architecture without a
    table, keeps its GGUF name.
    """
    layers = ARCHITECTURES.get(architecture)
    if layers is None:
        return name
    if match := _BLOCK.fullmatch(name):
        index, stem, kind = match.groups()
        return f"model.layers.{index}.{layers[stem]}.{kind}" if stem in layers else name
    if (match := _WHOLE.fullmatch(name)) and match[1] in MODEL:
        return f"{MODEL[match[1]]}.{match[2]}"
    return name
