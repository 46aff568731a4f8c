"""Model builders against transformers: the same folder, the same logits, the same greedy tokens."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from xinheng.core.errors import FormatError, ModelError
from xinheng.core.hal import Device
from xinheng.core.ir.dtype import float32
from xinheng.engine.models import open_model

from . import tiny
from .oracle import deviation, expected
from .tiny import Config, greedy, open_llm, text_ids

pytestmark = pytest.mark.filterwarnings("ignore")  # what transformers warns of is not ours

CONFIGS = {
    "llama": tiny.LLAMA,
    "llama3-rope-tied": tiny.LLAMA3,
    "llama-biases-linear-rope": tiny.LLAMA_BIAS,
    "mistral-window": tiny.MISTRAL,
    "gemma3": tiny.GEMMA3,
    "gemma3-untied-capped": tiny.GEMMA3_CAPPED,
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    name: str, seed: int, device: Device, tmp_path: Path
) -> None:
    folder = tiny.write_model(tmp_path / "model", CONFIGS[name], seed)
    prompt = text_ids(48, seed)
    with open_llm(folder, device.spec) as llm:
        chosen = list(llm.generate(prompt, greedy(32))[0].token_ids)
        got = llm.logits(prompt + chosen)
    want = expected(folder, prompt + chosen)
    assert deviation(got, want) < 1e-5
    assert chosen == want[47:-1].argmax(-1).tolist()
    assert len(set(chosen)) > 1


@pytest.mark.parametrize("stored", [np.float16, np.float64])
def test_stored_types_are_read_exactly(stored: Any, device: Device, tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model", tiny.LLAMA, 3, stored)
    with open_llm(folder, device.spec) as llm:
        assert deviation(llm.logits(text_ids(20)), expected(folder, text_ids(20))) < 1e-5


@pytest.mark.parametrize("chunk", [1, 7, 16])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_text_in_pieces_gives_the_same_logits(name: str, chunk: int, device: Device, tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model", CONFIGS[name], 4)
    with open_llm(folder, device.spec) as llm:
        whole, pieces = llm.logits(text_ids(50)), llm.logits(text_ids(50), chunk)
    assert deviation(pieces, whole) < 1e-5


@pytest.mark.parametrize("name", ["mistral-window", "gemma3"])
def test_the_window_bounds_what_a_token_sees(name: str, device: Device, tmp_path: Path) -> None:
    """With sliding layers only, a token n layers up cannot see further back than n windows; with a full one it can."""
    window = CONFIGS[name]["sliding_window"]
    reach = CONFIGS[name]["num_hidden_layers"] * (window - 1)
    folder = tiny.write_model(tmp_path / "model", CONFIGS[name], 5)
    text = text_ids(reach + 20)
    changed = [(text[0] + 1) % 290 + 3, *text[1:]]
    with open_llm(folder, device.spec) as llm:
        before, after = llm.logits(text), llm.logits(changed)
    moved = np.abs(before - after).max(-1)
    assert moved[1] > 1e-3
    if "full_attention" in CONFIGS[name].get("layer_types", ()):
        assert moved[reach + 1 :].max() > 1e-5
    else:
        assert moved[reach] > 0
        assert moved[reach + 1 :].max() == 0


def test_attention_logits_are_capped(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers reads attn_logit_softcapping of a gemma3 and forgets to use it, so it is told to."""
    from transformers.models.gemma3 import modeling_gemma3

    folder = tiny.write_model(tmp_path / "model", tiny.GEMMA3_CAPPED | {"attn_logit_softcapping": 1.5}, 6)
    ids = text_ids(40)
    uncapped = expected(folder, ids)
    capped: Any = partial(modeling_gemma3.eager_attention_forward, softcap=1.5)
    monkeypatch.setattr(modeling_gemma3, "eager_attention_forward", capped)
    want = expected(folder, ids)
    assert deviation(uncapped, want) > 1e-3
    with open_llm(folder, device.spec) as llm:
        assert deviation(llm.logits(ids), want) < 1e-5


OLD_SPELLINGS: dict[str, tuple[Config, Config]] = {
    "llama": (tiny.LLAMA, {"rope_theta": 1000.0}),
    "llama-type-key": (
        tiny.LLAMA_BIAS,
        {"rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 2.5}},
    ),
    "llama3": (
        tiny.LLAMA3,
        {
            "rope_theta": 500.0,
            "rope_scaling": {k: v for k, v in tiny.LLAMA3["rope_parameters"].items() if k != "rope_theta"},
        },
    ),
    "gemma3": (
        tiny.GEMMA3,
        {
            "rope_theta": 5000.0,
            "rope_local_base_freq": 300.0,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            "layer_types": None,
            "sliding_window_pattern": 6,
        },
    ),
}


@pytest.mark.parametrize("name", OLD_SPELLINGS)
def test_rope_is_read_in_the_spelling_of_transformers_4_too(name: str, tmp_path: Path) -> None:
    """vllm-project/vllm#28542: a reader of one spelling takes the default base for the other."""
    new, old = OLD_SPELLINGS[name]
    renamed = {key: value for key, value in new.items() if key != "rope_parameters"} | old
    tiny.write_model(tmp_path / "new", new, 7)
    tiny.write_model(tmp_path / "old", renamed, 7)
    assert open_model(tmp_path / "new").config == open_model(tmp_path / "old").config
    with open_llm(tmp_path / "new", "cpu:0") as one, open_llm(tmp_path / "old", "cpu:0") as two:
        assert (one.logits(text_ids(30)) == two.logits(text_ids(30))).all()


def rewritten(folder: Path, **changes: Any) -> Path:
    """The model with some keys of its config replaced; ... takes one out."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    return folder


BAD_CONFIGS: list[tuple[Config, dict[str, Any], str]] = [
    (tiny.LLAMA, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "beta": 1}}, "unknown key 'beta'"),
    (tiny.LLAMA, {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope type 'longrope'"),
    (tiny.LLAMA, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "lack 'factor'"),
    (tiny.LLAMA, {"rope_parameters": {"rope_type": "default"}}, "no 'rope_theta'"),
    (tiny.LLAMA, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": "2"}}, "factor is '2'"),
    (tiny.LLAMA, {"rope_parameters": {"rope_type": "default", "rope_theta": -1.0}}, "impossible frequencies"),
    (tiny.LLAMA, {"rope_parameters": [1]}, "it must be an object"),
    (tiny.GEMMA3, {"rope_parameters": {"full_attention": 3}}, "full_attention is 3"),
    (tiny.LLAMA, {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    (tiny.LLAMA, {"num_hidden_layers": ...}, "no 'num_hidden_layers'"),
    (tiny.LLAMA, {"num_attention_heads": True}, "num_attention_heads is True"),
    (tiny.LLAMA, {"hidden_size": "64"}, "hidden_size is '64'"),
    (tiny.LLAMA, {"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
    (tiny.LLAMA, {"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
    (tiny.LLAMA, {"head_dim": 15}, "impossible frequencies for a width of 15"),
    (tiny.LLAMA, {"eos_token_id": "</s>"}, "'</s>' is not a token id"),
    (
        tiny.LLAMA,
        {"model_type": "mamba"},
        "no builder for architecture 'mamba'; there are deepseek_v3, gemma3, glm4",
    ),
    (tiny.LLAMA, {"quantization_config": {"quant_method": "fp8"}}, "quantization_config asks for 'fp8'"),
    (tiny.GEMMA3, {"hidden_activation": "silu"}, "hidden_activation 'silu'"),
    (tiny.GEMMA3, {"layer_types": ["full_attention"] * 6}, "for each of 7 layers"),
    (tiny.GEMMA3, {"layer_types": ["full_attention"] * 6 + ["linear_attention"]}, "'linear_attention'"),
    (tiny.GEMMA3, {"use_bidirectional_attention": True}, "cannot generate text"),
]


@pytest.mark.parametrize(("config", "change", "says"), BAD_CONFIGS, ids=[says for _, _, says in BAD_CONFIGS])
def test_a_config_that_makes_no_sense_is_refused_by_name(
    config: Config, change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    folder = rewritten(tiny.write_model(tmp_path / "model", config), **change)
    with pytest.raises(ModelError, match=says):
        open_model(folder)


BAD_TENSORS: list[tuple[Config, dict[str, tuple[int, ...] | None], str]] = [
    (tiny.LLAMA, {"model.layers.1.mlp.up_proj.weight": None}, "no tensor 'model.layers.1.mlp.up_proj.weight'"),
    (tiny.LLAMA, {"lm_head.weight": None}, "no tensor 'lm_head.weight'"),
    (tiny.LLAMA, {"model.norm.weight": None}, "no tensor 'model.norm.weight'"),
    (tiny.LLAMA, {"model.norm.weight": (63,)}, r"'model.norm.weight' is \[63\], the config asks for \[64\]"),
    (tiny.LLAMA, {"lm_head.weight": (300, 64)}, r"'lm_head.weight' is \[300, 64\], the config asks for \[304, 64\]"),
    (tiny.LLAMA, {"model.layers.0.self_attn.q_proj.bias": (64,)}, "no place for model.layers.0.self_attn.q_proj.bias"),
    (tiny.LLAMA, {"model.layers.2.mlp.up_proj.weight": (96, 64)}, "no place for model.layers.2"),
    (tiny.LLAMA_BIAS, {"model.layers.0.mlp.down_proj.bias": None}, "no tensor 'model.layers.0.mlp.down_proj.bias'"),
    (tiny.GEMMA3, {"model.layers.3.self_attn.q_norm.weight": (16,)}, r"q_norm.weight' is \[16\]"),
]


@pytest.mark.parametrize(("config", "change", "says"), BAD_TENSORS, ids=[says for _, _, says in BAD_TENSORS])
def test_tensors_that_do_not_fit_the_config_are_refused_by_name(
    config: Config, change: dict[str, tuple[int, ...] | None], says: str, tmp_path: Path
) -> None:
    folder = tiny.write_model(tmp_path / "model", config)
    tensors = load_file(folder / "model.safetensors")
    for name, shape in change.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = np.zeros(shape, np.float32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=says):
        open_model(folder).build(float32, "float32")


def test_a_tied_head_in_the_file_and_stored_frequencies_are_no_surplus(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model", tiny.LLAMA3)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(16, np.float32)
    save_file(tensors, folder / "model.safetensors")
    assert open_model(folder).build(float32, "float32")


def test_end_tokens_are_the_union_of_both_configs(tmp_path: Path) -> None:
    """01-ai/Yi#223: the token that ends a turn stands in generation_config.json only."""
    folder = tiny.write_model(tmp_path / "model", tiny.LLAMA | {"eos_token_id": 2})
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 2, 9]}')
    assert open_model(folder).config.eos_ids == (2, 7, 9)
    (folder / "generation_config.json").write_text("[]")
    with pytest.raises(FormatError, match="generation_config"):
        open_model(folder)


def test_only_mistral_means_its_window(tmp_path: Path) -> None:
    llama = open_model(tiny.write_model(tmp_path / "llama", tiny.LLAMA | {"sliding_window": 8})).config
    mistral = open_model(tiny.write_model(tmp_path / "mistral", tiny.MISTRAL)).config
    full = open_model(tiny.write_model(tmp_path / "full", tiny.MISTRAL | {"sliding_window": None})).config
    assert [config.window(0) for config in (llama, mistral, full)] == [None, 8, None]
