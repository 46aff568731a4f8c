"""Tiny random models as Hugging Face folders: config, weights, a byte-level BPE tokenizer and a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings, SamplingParams

Config = dict[str, Any]

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 304  # a little more than the tokenizer has, as in many models
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = ["the moon goes around the earth and the sea follows it twice a day", "a mill turns when the tide runs out"]

LLAMA: Config = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
LLAMA3: Config = LLAMA | {
    "num_attention_heads": 6,
    "hidden_size": 96,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}
LLAMA_BIAS: Config = LLAMA | {
    "attention_bias": True,
    "mlp_bias": True,
    "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5},
}
MISTRAL: Config = LLAMA | {"model_type": "mistral", "sliding_window": 8, "head_dim": 16}
GEMMA3: Config = {
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 24,
    "sliding_window": 8,
    "layer_types": ["full_attention" if i == 5 else "sliding_attention" for i in range(7)],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
GEMMA3_CAPPED: Config = GEMMA3 | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 11,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "final_logit_softcapping": 3.0,
}


def write_model(folder: Path, config: Config, seed: int = 0, stored: Any = np.float32) -> Path:
    """Write a model of random weights of the type `stored` into an empty folder; the same seed gives the same bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: array.astype(stored) for name, array in weights(config, seed).items()}, folder / "model.safetensors"
    )
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path, template: str | None = TEMPLATE) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 8, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[2], "add_bos_token": False, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def weights(config: Mapping[str, Any], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Weights that keep activations near one, so that logits spread over several units."""
    rng = np.random.default_rng(seed)
    gemma = config["model_type"].startswith("gemma")
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    width = config.get("head_dim", hidden // heads)
    made: dict[str, np.ndarray[Any, Any]] = {}

    def matrix(name: str, rows: int, columns: int, bias: bool = False) -> None:
        made[f"{name}.weight"] = rng.normal(0, columns**-0.5, (rows, columns))
        if bias:
            made[f"{name}.bias"] = rng.normal(0, 0.3, rows)

    def norm(name: str, size: int) -> None:
        made[f"{name}.weight"] = rng.normal(0.0 if gemma else 1.0, 0.3, size)

    # small where it is the head too, or each token would be followed by itself
    spread = (0.05 if gemma else 0.1) if config["tie_word_embeddings"] else 0.2
    made["model.embed_tokens.weight"] = rng.normal(0, spread, (config["vocab_size"], hidden))
    for layer in range(config["num_hidden_layers"]):
        prefix, bias = f"model.layers.{layer}", config.get("attention_bias", False)
        kv = config["num_key_value_heads"] * width
        for name, rows in (("q_proj", heads * width), ("k_proj", kv), ("v_proj", kv)):
            matrix(f"{prefix}.self_attn.{name}", rows, hidden, bias)
        matrix(f"{prefix}.self_attn.o_proj", hidden, heads * width, bias)
        for name in ("gate_proj", "up_proj"):
            matrix(f"{prefix}.mlp.{name}", inner, hidden, config.get("mlp_bias", False))
        matrix(f"{prefix}.mlp.down_proj", hidden, inner, config.get("mlp_bias", False))
        norm(f"{prefix}.input_layernorm", hidden)
        norm(f"{prefix}.post_attention_layernorm", hidden)
        if gemma:
            norm(f"{prefix}.pre_feedforward_layernorm", hidden)
            norm(f"{prefix}.post_feedforward_layernorm", hidden)
            norm(f"{prefix}.self_attn.q_norm", width)
            norm(f"{prefix}.self_attn.k_norm", width)
    norm("model.norm", hidden)
    made["model.norm.weight"] += 3.0 if gemma else 0.0
    if not config["tie_word_embeddings"]:
        matrix("lm_head", config["vocab_size"], hidden)
        made["lm_head.weight"] *= 2
    return made


def open_llm(folder: Path, device: str, **settings: Any) -> LLM:
    """A tiny model in float32 on a device, with engine settings given."""
    runtime = RuntimeSettings(device=device, dtype="float32", numerics="strict")
    given: dict[str, Any] = {"max_num_batched_tokens": 256} | settings
    return LLM(folder, runtime=runtime, settings=EngineSettings(**given))


def greedy(tokens: int, **others: Any) -> SamplingParams:
    """Exactly `tokens` tokens, each the likeliest."""
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, **others)


def text_ids(count: int, seed: int = 0) -> list[int]:
    """Random ids of ordinary tokens."""
    return [int(x) for x in np.random.default_rng(seed).integers(len(SPECIALS), 300, count)]
