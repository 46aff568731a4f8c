"""Configs without weights: what published ones mean, and what is refused with the name of the field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from xinheng.core.errors import ModelError
from xinheng.engine.models import ModelConfig, deepseek_v3, glm4, qwen2, qwen3, qwen3_moe

from . import tiny
from .tiny import Config

BUILDERS: dict[str, Any] = {
    "qwen2": qwen2,
    "qwen3": qwen3,
    "glm4": glm4,
    "qwen3_moe": qwen3_moe,
    "deepseek_v3": deepseek_v3,
}


def read(config: Config) -> ModelConfig:
    """A config by the builder of its type."""
    found: ModelConfig = BUILDERS[config["model_type"]].from_hugging_face(config)
    return found


QWEN: Config = {
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
}
QWEN25_7B: Config = QWEN | {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
QWEN3_600M: Config = QWEN | {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
QWEN3_30B_A3B: Config = QWEN | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rope_scaling": None,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
GLM4_9B: Config = {
    "architectures": ["Glm4ForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338],
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 13696,
    "max_position_embeddings": 32768,
    "model_type": "glm4",
    "num_attention_heads": 32,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "pad_token_id": 151329,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 151552,
}
DEEPSEEK_671B: Config = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "initializer_range": 0.02,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


def sizes(config: ModelConfig) -> tuple[int, ...]:
    """Width, inner width, layers, heads, key-value heads, head width, vocabulary, context."""
    return (
        config.hidden_size,
        config.intermediate_size,
        config.num_layers,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.vocab_size,
        config.max_position,
    )


def test_qwen25_7b() -> None:
    config = read(QWEN25_7B)
    assert sizes(config) == (3584, 18944, 28, 28, 4, 128, 152064, 32768)
    assert (config.attention_bias, config.output_bias, config.mlp_bias) == (True, False, False)
    assert (config.rope.kind, config.rope.theta, config.rope.width) == ("default", 1e6, 128)
    assert {config.window(layer) for layer in range(28)} == {None}
    assert (config.tie_word_embeddings, config.interleaved, config.eos_ids) == (False, False, (151645,))
    assert (config.attention_scale, config.rms_norm_eps) == (128**-0.5, 1e-6)


def test_qwen25_7b_with_the_long_context_of_its_model_card() -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}
    rope = read(QWEN25_7B | {"rope_scaling": yarn}).rope
    assert (rope.kind, rope.theta, rope.factor, rope.original_max_position) == ("yarn", 1e6, 4.0, 32768)
    assert rope.magnitude == pytest.approx(0.1 * math.log(4) + 1)
    frequencies, plain = rope.frequencies(), read(QWEN25_7B).rope.frequencies()
    assert (frequencies[0], frequencies[-1]) == (plain[0], pytest.approx(plain[-1] / 4))


def test_qwen3_600m() -> None:
    config = read(QWEN3_600M)
    assert sizes(config) == (1024, 3072, 28, 16, 8, 128, 151936, 40960)
    assert (config.attention_bias, config.output_bias, config.tie_word_embeddings) == (False, False, True)
    assert (config.rope.theta, config.rope.width, config.attention_scale) == (1e6, 128, 128**-0.5)
    assert config.moe is None


def test_qwen3_30b_a3b() -> None:
    config = read(QWEN3_30B_A3B)
    assert sizes(config) == (2048, 6144, 48, 32, 4, 128, 151936, 40960)
    moe = config.moe
    assert moe is not None
    assert (moe.experts, moe.chosen, moe.inner, moe.layers, moe.shared_inner) == (128, 8, 768, (True,) * 48, 0)
    assert (moe.score, moe.renormalise, moe.scale, moe.selection_bias, moe.groups) == ("softmax", True, 1.0, False, 1)


def test_qwen3_moe_does_not_renormalise_unless_told() -> None:
    moe = read({key: value for key, value in QWEN3_30B_A3B.items() if key != "norm_topk_prob"}).moe
    assert moe is not None
    assert not moe.renormalise


def test_glm4_9b() -> None:
    config = read(GLM4_9B)
    assert sizes(config) == (4096, 13696, 40, 32, 2, 128, 151552, 32768)
    assert (config.attention_bias, config.output_bias, config.interleaved) == (True, False, True)
    assert (config.rope.theta, config.rope.width, config.attention_scale) == (1e4, 64, 128**-0.5)
    assert (config.eos_ids, config.rms_norm_eps) == ((151329, 151336, 151338), 1e-5)


def test_what_glm4_takes_where_the_config_is_silent() -> None:
    silent = ("attention_bias", "partial_rotary_factor", "rms_norm_eps", "head_dim")
    config = read({key: value for key, value in GLM4_9B.items() if key not in silent})
    found = (config.attention_bias, config.rope.width, config.rms_norm_eps, config.head_dim)
    assert found == (True, 64, 1.5625e-7, 128)


def test_deepseek_v3() -> None:
    config = read(DEEPSEEK_671B)
    assert sizes(config) == (7168, 18432, 61, 128, 128, 192, 129280, 163840)
    assert (config.interleaved, config.attention_bias, config.extra_layers) == (True, False, 1)
    mla, moe = config.mla, config.moe
    assert mla is not None
    assert moe is not None
    assert (mla.query_rank, mla.latent_dim, mla.nope_dim, mla.rope_dim, mla.value_dim) == (1536, 512, 128, 64, 128)
    assert (moe.experts, moe.chosen, moe.inner, moe.shared_inner) == (256, 8, 2048, 2048)
    assert moe.layers == (False,) * 3 + (True,) * 58
    assert (moe.score, moe.renormalise, moe.scale, moe.selection_bias) == ("sigmoid", True, 2.5, True)
    assert (moe.groups, moe.groups_kept, moe.group_score) == (8, 4, "top2")
    assert (config.rope.kind, config.rope.width, config.rope.magnitude) == ("yarn", 64, 1.0)
    assert config.attention_scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert config.eos_ids == (1,)


WINDOWED = {"layer_types": ["full_attention", "sliding_attention"]}
BAD: list[tuple[Config, dict[str, Any], str]] = [
    (QWEN25_7B, {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "lack 'original_max_position_embeddings'"),
    (QWEN25_7B, {"rope_scaling": {"type": "yarn", "factor": None}}, "lack 'factor'"),
    (QWEN25_7B, {"rope_scaling": {"type": "linear", "factor": 4.0, "mscale": 1.0}}, "unknown key 'mscale'"),
    (QWEN25_7B, {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope type 'dynamic'"),
    (QWEN25_7B, {"rope_scaling": {"type": ["yarn"]}}, r"rope type \['yarn'\]"),
    (QWEN25_7B, {"rope_theta": 1}, "impossible frequencies"),
    (
        QWEN25_7B,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_scaling": {"type": "yarn"}},
        "rope_parameters and rope_scaling disagree",
    ),
    (QWEN25_7B, {"hidden_act": "gelu"}, "hidden_act 'gelu' is not what a qwen2"),
    (QWEN25_7B, {"use_sliding_window": "yes"}, "use_sliding_window is 'yes', it must be true or false"),
    (QWEN25_7B, {"use_sliding_window": True, "sliding_window": None}, "no 'sliding_window'"),
    (QWEN25_7B, {"num_key_value_heads": 5}, "28 attention heads cannot share 5"),
    (tiny.QWEN3, WINDOWED, "layer_types has sliding_attention, but use_sliding_window is not set"),
    (tiny.QWEN3, {"layer_types": "full_attention"}, "layer_types is 'full_attention', it must be a list"),
    (QWEN3_600M, {"tie_word_embeddings": 1}, "tie_word_embeddings is 1, it must be true or false"),
    (QWEN3_600M, {"hidden_act": "relu"}, "hidden_act 'relu' is not what a qwen3"),
    (QWEN3_600M, {"head_dim": 127}, "impossible frequencies for a width of 127"),
    (GLM4_9B, {"partial_rotary_factor": 1.5}, "impossible frequencies for a width of 128"),
    (GLM4_9B, {"attention_bias": "false"}, "attention_bias is 'false'"),
    (QWEN3_30B_A3B, {"num_experts_per_tok": 129}, "num_experts_per_tok is 129, but only 128"),
    (QWEN3_30B_A3B, {"num_experts": 0}, "num_experts is 0"),
    (QWEN3_30B_A3B, {"mlp_only_layers": 3}, "mlp_only_layers is 3, it must be a list"),
    (QWEN3_30B_A3B, {"mlp_only_layers": ["3"]}, r"mlp_only_layers is \['3'\]"),
    (QWEN3_30B_A3B, {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
    (QWEN3_30B_A3B, {"norm_topk_prob": "true"}, "norm_topk_prob is 'true'"),
    (QWEN3_30B_A3B, {"use_sliding_window": True}, "no 'sliding_window'"),
    (DEEPSEEK_671B, {"n_group": 7}, "n_group is 7, which does not divide 256 experts"),
    (DEEPSEEK_671B, {"n_group": 256}, "n_group is 256 for 256 experts; a group needs at least two"),
    (DEEPSEEK_671B, {"topk_group": 9}, "topk_group is 9, more than the n_group of 8"),
    (DEEPSEEK_671B, {"topk_group": 1, "num_experts_per_tok": 33}, "num_experts_per_tok is 33, but only 32"),
    (DEEPSEEK_671B, {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    (DEEPSEEK_671B, {"topk_method": "greedy"}, "topk_method is 'greedy'"),
    (DEEPSEEK_671B, {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
    (DEEPSEEK_671B, {"first_k_dense_replace": -1}, "first_k_dense_replace is -1"),
    (DEEPSEEK_671B, {"q_lora_rank": "1536"}, "q_lora_rank is '1536'"),
    (DEEPSEEK_671B, {"qk_rope_head_dim": 63}, "impossible frequencies for a width of 63"),
]


@pytest.mark.parametrize(("config", "change", "says"), BAD, ids=[says for _, _, says in BAD])
def test_a_config_that_makes_no_sense_is_refused_by_name(config: Config, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        read(config | change)
    assert read(config)
