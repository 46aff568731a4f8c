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

QWEN2: Config = LLAMA | {"model_type": "qwen2"}
QWEN3: Config = LLAMA | {"model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": True}
GLM4: Config = LLAMA | {
    "model_type": "glm4",
    "head_dim": 32,
    "attention_bias": True,
    "rms_norm_eps": 1.5625e-07,
    "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
}
QWEN3_MOE: Config = LLAMA | {
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [0],
    "router_aux_loss_coef": 0.0,
}
DEEPSEEK_V3: Config = LLAMA | {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "rope_interleave": True,
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


class Maker:
    """Random tensors of a model by name, one after another from one generator."""

    def __init__(self, config: Mapping[str, Any], seed: int) -> None:
        self.config, self.rng = config, np.random.default_rng(seed)
        self.gemma, self.glm = (config["model_type"].startswith(kind) for kind in ("gemma", "glm4"))
        self.hidden, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.width = config.get("head_dim", self.hidden // self.heads)
        self.made: dict[str, np.ndarray[Any, Any]] = {}

    def matrix(self, name: str, rows: int, columns: int, bias: bool = False) -> None:
        self.made[f"{name}.weight"] = self.rng.normal(0, columns**-0.5, (rows, columns))
        if bias:
            self.made[f"{name}.bias"] = self.rng.normal(0, 0.3, rows)

    def norm(self, name: str, size: int) -> None:
        self.made[f"{name}.weight"] = self.rng.normal(0.0 if self.gemma else 1.0, 0.3, size)

    def attention(self, prefix: str) -> None:
        kind, kv = self.config["model_type"], self.config["num_key_value_heads"] * self.width
        bias = self.config.get("attention_bias", kind == "qwen2")
        for name, rows in (("q_proj", self.heads * self.width), ("k_proj", kv), ("v_proj", kv)):
            self.matrix(f"{prefix}.{name}", rows, self.hidden, bias)
        self.matrix(f"{prefix}.o_proj", self.hidden, self.heads * self.width, bias and kind not in ("qwen2", "glm4"))

    def latent_attention(self, prefix: str) -> None:
        c, bias = self.config, self.config.get("attention_bias", False)
        nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        if c["q_lora_rank"] is None:
            self.matrix(f"{prefix}.q_proj", self.heads * (nope + rope), self.hidden)
        else:
            self.matrix(f"{prefix}.q_a_proj", c["q_lora_rank"], self.hidden, bias)
            self.norm(f"{prefix}.q_a_layernorm", c["q_lora_rank"])
            self.matrix(f"{prefix}.q_b_proj", self.heads * (nope + rope), c["q_lora_rank"])
        self.matrix(f"{prefix}.kv_a_proj_with_mqa", c["kv_lora_rank"] + rope, self.hidden, bias)
        self.norm(f"{prefix}.kv_a_layernorm", c["kv_lora_rank"])
        self.matrix(f"{prefix}.kv_b_proj", self.heads * (nope + value), c["kv_lora_rank"])
        self.matrix(f"{prefix}.o_proj", self.hidden, self.heads * value, bias)

    def network(self, prefix: str, inner: int) -> None:
        bias = self.config.get("mlp_bias", False)
        for name, rows in (("gate_up_proj", 2 * inner),) if self.glm else (("gate_proj", inner), ("up_proj", inner)):
            self.matrix(f"{prefix}.{name}", rows, self.hidden, bias)
        self.matrix(f"{prefix}.down_proj", self.hidden, inner, bias)

    def experts(self, prefix: str) -> None:
        latent = "n_routed_experts" in self.config
        count = self.config["n_routed_experts" if latent else "num_experts"]
        inner = self.config["moe_intermediate_size"]
        self.matrix(f"{prefix}.gate", count, self.hidden)
        if latent:
            self.made[f"{prefix}.gate.e_score_correction_bias"] = self.rng.normal(0, 0.1, count)
            self.network(f"{prefix}.shared_experts", inner * self.config["n_shared_experts"])
        for expert in range(count):
            self.network(f"{prefix}.experts.{expert}", inner)

    def layer(self, prefix: str, sparse: bool) -> None:
        if "kv_lora_rank" in self.config:
            self.latent_attention(f"{prefix}.self_attn")
        else:
            self.attention(f"{prefix}.self_attn")
        if sparse:
            self.experts(f"{prefix}.mlp")
        else:
            self.network(f"{prefix}.mlp", self.config["intermediate_size"])
        self.norm(f"{prefix}.input_layernorm", self.hidden)
        self.norm(f"{prefix}.post_attention_layernorm", self.hidden)
        if self.gemma:
            self.norm(f"{prefix}.pre_feedforward_layernorm", self.hidden)
            self.norm(f"{prefix}.post_feedforward_layernorm", self.hidden)
        if self.glm:
            self.norm(f"{prefix}.post_self_attn_layernorm", self.hidden)
            self.norm(f"{prefix}.post_mlp_layernorm", self.hidden)
        if self.gemma or self.config["model_type"].startswith("qwen3"):
            self.norm(f"{prefix}.self_attn.q_norm", self.width)
            self.norm(f"{prefix}.self_attn.k_norm", self.width)


def weights(config: Mapping[str, Any], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Weights that keep activations near one, so that logits spread over several units."""
    m = Maker(config, seed)
    # small where it is the head too, or each token would be followed by itself
    spread = (0.05 if m.gemma else 0.1) if config["tie_word_embeddings"] else 0.2
    m.made["model.embed_tokens.weight"] = m.rng.normal(0, spread, (config["vocab_size"], m.hidden))
    sparse = "moe_intermediate_size" in config
    dense = config.get("mlp_only_layers", list(range(config.get("first_k_dense_replace", 0))))
    step = config.get("decoder_sparse_step", 1)
    for layer in range(config["num_hidden_layers"]):
        m.layer(f"model.layers.{layer}", sparse and layer not in dense and (layer + 1) % step == 0)
    m.norm("model.norm", m.hidden)
    m.made["model.norm.weight"] += 3.0 if m.gemma else 0.0
    if not config["tie_word_embeddings"]:
        m.matrix("lm_head", config["vocab_size"], m.hidden)
        m.made["lm_head.weight"] *= 2
    return m.made


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
