"""The table of tensor names and its traps: one Hugging Face name has several GGUF names, and the other way round."""

from __future__ import annotations

import pytest

from xinheng.engine.weights.gguf_names import ARCHITECTURES, MODEL, hugging_face_name


@pytest.mark.parametrize(
    ("architecture", "name", "expected"),
    [
        ("llama", "token_embd.weight", "model.embed_tokens.weight"),
        ("llama", "output_norm.weight", "model.norm.weight"),
        ("llama", "output.weight", "lm_head.weight"),
        ("llama", "blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("llama", "blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("llama", "blk.10.attn_k.bias", "model.layers.10.self_attn.k_proj.bias"),
        ("llama", "blk.2.attn_v.weight", "model.layers.2.self_attn.v_proj.weight"),
        ("llama", "blk.2.attn_output.weight", "model.layers.2.self_attn.o_proj.weight"),
        ("llama", "blk.2.ffn_gate.weight", "model.layers.2.mlp.gate_proj.weight"),
        ("llama", "blk.2.ffn_up.weight", "model.layers.2.mlp.up_proj.weight"),
        ("llama", "blk.2.ffn_down.weight", "model.layers.2.mlp.down_proj.weight"),
        ("llama", "blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
        ("gemma3", "blk.3.ffn_norm.weight", "model.layers.3.pre_feedforward_layernorm.weight"),
        ("gemma3", "blk.3.post_attention_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
        ("gemma3", "blk.3.post_ffw_norm.weight", "model.layers.3.post_feedforward_layernorm.weight"),
        ("gemma3", "blk.3.attn_q_norm.weight", "model.layers.3.self_attn.q_norm.weight"),
        ("gemma3", "blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
        ("qwen3", "blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
        ("qwen3", "blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
        ("gemma3", "blk.3.attn_norm.weight", "model.layers.3.input_layernorm.weight"),
    ],
)
def test_names(architecture: str, name: str, expected: str) -> None:
    assert hugging_face_name(architecture, name) == expected


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "rope_freqs.weight"),
        ("llama", "blk.0.post_ffw_norm.weight"),
        ("llama", "blk.00.attn_q.weight"),
        ("llama", "blk.0.attn_q.weight.x"),
        ("llama", "blk.٣.attn_q.weight"),
        ("llama", "blk.0.attn_q"),
        ("llama", "output"),
        ("unheard-of", "output.weight"),
    ],
)
def test_what_has_no_counterpart_keeps_its_name(architecture: str, name: str) -> None:
    assert hugging_face_name(architecture, name) == name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_two_tensors_share_a_name(architecture: str) -> None:
    names = [*MODEL.values(), *ARCHITECTURES[architecture].values()]
    assert len(set(names)) == len(names)
