"""Builders of Qwen, GLM and DeepSeek models against transformers, in every choice their configs offer."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import load_file, save_file

from xinheng.core.errors import ModelError
from xinheng.core.hal import Device
from xinheng.core.ir.dtype import float32
from xinheng.engine import SamplingParams
from xinheng.engine.models import open_model

from . import oracle, tiny
from .oracle import deviation
from .tiny import Config, greedy, open_llm, text_ids

pytestmark = pytest.mark.filterwarnings("ignore")  # what transformers warns of is not ours

BOUND, PROMPT = 1e-5, 24
WINDOW = {"use_sliding_window": True, "sliding_window": 8}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "original_max_position_embeddings": 32}
DEEP_YARN = YARN | {"mscale": 1.0, "mscale_all_dim": 0.6, "beta_fast": 16, "beta_slow": 2}

CONFIGS: dict[str, Config] = {
    "qwen2": tiny.QWEN2,
    "qwen2-tied": tiny.QWEN2 | {"tie_word_embeddings": True},
    "qwen2-window": tiny.QWEN2 | WINDOW | {"num_hidden_layers": 3, "max_window_layers": 1},
    "qwen2-yarn": tiny.QWEN2 | {"rope_parameters": YARN},
    "qwen3": tiny.QWEN3,
    "qwen3-untied-biased": tiny.QWEN3 | {"tie_word_embeddings": False, "attention_bias": True},
    "qwen3-window": tiny.QWEN3 | WINDOW | {"layer_types": ["sliding_attention", "full_attention"]},
    "qwen3-yarn": tiny.QWEN3 | {"rope_parameters": YARN | {"truncate": False, "attention_factor": 1.3}},
    "glm4": tiny.GLM4,
    "glm4-unbiased-quarter": tiny.GLM4
    | {"attention_bias": False, "rope_parameters": tiny.GLM4["rope_parameters"] | {"partial_rotary_factor": 0.25}},
    "qwen3_moe": tiny.QWEN3_MOE,
    "qwen3_moe-raw-weights": tiny.QWEN3_MOE | {"norm_topk_prob": False, "mlp_only_layers": [], "num_experts": 5},
    "qwen3_moe-sparse-step": tiny.QWEN3_MOE
    | {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [1], "attention_bias": True},
    "qwen3_moe-window": tiny.QWEN3_MOE | WINDOW,
    "deepseek_v3": tiny.DEEPSEEK_V3,
    "deepseek_v3-yarn": tiny.DEEPSEEK_V3 | {"rope_parameters": DEEP_YARN, "rms_norm_eps": 0.05},
    "deepseek_v3-plain-query": tiny.DEEPSEEK_V3 | {"q_lora_rank": None, "attention_bias": True, "n_shared_experts": 2},
    "deepseek_v3-half-split": tiny.DEEPSEEK_V3 | {"rope_interleave": False, "norm_topk_prob": False},
    "deepseek_v3-one-group": tiny.DEEPSEEK_V3 | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0},
    "deepseek_v3-dense": tiny.DEEPSEEK_V3 | {"first_k_dense_replace": 2, "tie_word_embeddings": True},
}
FAMILIES = ("qwen2", "qwen3", "glm4", "qwen3_moe", "deepseek_v3")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small take longer to share among threads than to compute, above all on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_and_decode_are_those_of_transformers(name: str, seed: int, device: Device, tmp_path: Path) -> None:
    """The logits of a prompt at once, those of 32 steps behind it one by one, and the tokens chosen from them."""
    folder = tiny.write_model(tmp_path / "model", CONFIGS[name], seed)
    prompt = text_ids(PROMPT, seed)
    with open_llm(folder, device.spec) as llm:
        chosen = list(llm.generate(prompt, greedy(32))[0].token_ids)
        prefill = llm.logits(prompt)
        steps = llm.logits(prompt + chosen, chunk=1)[PROMPT:]
    want = oracle.expected(folder, prompt + chosen)
    spread = want.max() - want.min()
    assert np.abs(prefill - want[:PROMPT]).max() < BOUND * spread
    assert np.abs(steps - want[PROMPT:]).max() < BOUND * spread
    assert chosen == want[PROMPT - 1 : -1].argmax(-1).tolist()
    assert len(set(chosen)) > 1


@pytest.mark.parametrize("name", CONFIGS)
def test_a_text_in_pieces_gives_the_same_logits(name: str, device: Device, tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model", CONFIGS[name], 4)
    with open_llm(folder, device.spec) as llm:
        whole, pieces = llm.logits(text_ids(50)), llm.logits(text_ids(50), chunk=7)
    assert deviation(pieces, whole) < BOUND


@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_answers_as_each_prompt_alone(name: str, device: Device, tmp_path: Path) -> None:
    """Prompts of several lengths, prefilled in small chunks between the decode steps of the others."""
    folder = tiny.write_model(tmp_path / "model", CONFIGS[name], 5)
    prompts = [text_ids(length, length) for length in (3, 40, 17)]
    with open_llm(folder, device.spec) as llm:
        alone = [llm.generate(prompt, greedy(16))[0].token_ids for prompt in prompts]
    with open_llm(folder, device.spec, max_num_batched_tokens=16) as llm:
        together = [output.token_ids for output in llm.generate(prompts, greedy(16))]
    assert together == alone


def old_spelling(config: Config) -> Config:
    """The same rope as transformers 4 wrote it."""
    rope = dict(config["rope_parameters"])
    kept = {key: value for key, value in config.items() if key != "rope_parameters"}
    moved = {key: rope.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    scaling = None if rope["rope_type"] == "default" else {"type": rope.pop("rope_type"), **rope}
    return kept | moved | {"rope_scaling": scaling}


@pytest.mark.parametrize("name", [name for name in CONFIGS if name in FAMILIES or name.endswith(("yarn", "quarter"))])
def test_rope_is_read_in_the_spelling_of_transformers_4_too(name: str, tmp_path: Path) -> None:
    tiny.write_model(tmp_path / "new", CONFIGS[name], 7)
    old = tiny.write_model(tmp_path / "old", old_spelling(CONFIGS[name]), 7)
    assert open_model(tmp_path / "new").config == open_model(old).config
    with open_llm(old, "cpu:0") as llm:
        assert deviation(llm.logits(text_ids(30)), oracle.expected(old, text_ids(30))) < BOUND


@pytest.mark.parametrize("name", FAMILIES)
def test_what_transformers_saves_in_shards_is_the_same_model(name: str, tmp_path: Path) -> None:
    single, sharded = tiny.write_model(tmp_path / "single", CONFIGS[name], 8), tmp_path / "sharded"
    oracle.load(single).save_pretrained(sharded, max_shard_size="60KB")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(single / file, sharded)
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    with open_llm(single, "cpu:0") as one, open_llm(sharded, "cpu:0") as many:
        assert (one.logits(text_ids(20)) == many.logits(text_ids(20))).all()


def with_tensors(folder: Path, **changes: tuple[int, ...] | None) -> Path:
    """The model with tensors of zeros added or replaced; None takes one out."""
    tensors = load_file(folder / "model.safetensors")
    for name, shape in changes.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = np.zeros(shape, np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def predicting(layer: int) -> dict[str, tuple[int, ...] | None]:
    """Some tensors of a layer that predicts a further token."""
    sizes = {"eh_proj": (64, 128), "enorm": (64,), "shared_head.head": (304, 64), "mlp.experts.0.up_proj": (32, 64)}
    return {f"model.layers.{layer}.{name}.weight": shape for name, shape in sizes.items()}


def test_layers_that_predict_further_tokens_are_skipped(tmp_path: Path) -> None:
    """deepseek-ai/DeepSeek-V3 stores layer 61 of 61 (counted from 0) for speculative decoding."""
    plain = tiny.write_model(tmp_path / "plain", tiny.DEEPSEEK_V3, 9)
    config = tiny.DEEPSEEK_V3 | {"num_nextn_predict_layers": 1}
    folder = with_tensors(tiny.write_model(tmp_path / "model", config, 9), **predicting(2))
    with open_llm(plain, "cpu:0") as one, open_llm(folder, "cpu:0") as two:
        assert (one.logits(text_ids(20)) == two.logits(text_ids(20))).all()


@pytest.mark.parametrize(
    ("declared", "tensors"),
    [(0, predicting(2)), (1, predicting(3)), (1, {"model.layers.2.mlp.up_proj.weight": (96, 64)})],
    ids=["none declared", "one too far", "an ordinary layer"],
)
def test_other_layers_behind_the_last_are_surplus(
    declared: int, tensors: dict[str, tuple[int, ...] | None], tmp_path: Path
) -> None:
    config = tiny.DEEPSEEK_V3 | {"num_nextn_predict_layers": declared}
    folder = with_tensors(tiny.write_model(tmp_path / "model", config), **tensors)
    with pytest.raises(ModelError, match=r"no place for model\.layers\."):
        open_model(folder).build(float32, "float32")


EXPERT = "model.layers.1.mlp.experts.5.up_proj.weight"
ATTENTION = "model.layers.0.self_attn"
BAD_TENSORS: list[tuple[Config, dict[str, tuple[int, ...] | None], str]] = [
    (tiny.QWEN2, {f"{ATTENTION}.k_proj.bias": None}, f"no tensor '{ATTENTION}.k_proj.bias'"),
    (tiny.QWEN2, {f"{ATTENTION}.o_proj.bias": (64,)}, f"no place for {ATTENTION}.o_proj.bias"),
    (tiny.QWEN3, {f"{ATTENTION}.q_norm.weight": (16,)}, rf"{ATTENTION}.q_norm.weight' is \[16\].* asks for \[24\]"),
    (tiny.QWEN3, {f"{ATTENTION}.q_proj.bias": (96,)}, f"no place for {ATTENTION}.q_proj.bias"),
    (tiny.GLM4, {"model.layers.1.post_mlp_layernorm.weight": None}, "no tensor 'model.layers.1.post_mlp_layernorm"),
    (tiny.GLM4, {"model.layers.0.mlp.gate_up_proj.weight": (96, 64)}, r"gate_up_proj.weight' is \[96, 64\].*\[192, 64"),
    (tiny.QWEN3_MOE, {EXPERT: None}, f"no tensor '{EXPERT}'"),
    (tiny.QWEN3_MOE, {EXPERT: (31, 64)}, rf"'{EXPERT}' is \[31, 64\], the config asks for \[32, 64\]"),
    (tiny.QWEN3_MOE, {"model.layers.1.mlp.experts.8.up_proj.weight": (32, 64)}, "no place for model.layers.1.mlp.exp"),
    (tiny.QWEN3_MOE, {"model.layers.1.mlp.gate.weight": (7, 64)}, r"gate.weight' is \[7, 64\]"),
    (
        tiny.DEEPSEEK_V3,
        {"model.layers.1.mlp.gate.e_score_correction_bias": None},
        "no tensor .*e_score_correction_bias",
    ),
    (tiny.DEEPSEEK_V3, {f"{ATTENTION}.kv_b_proj.weight": (112, 31)}, r"kv_b_proj.weight' is \[112, 31\]"),
    (tiny.DEEPSEEK_V3 | {"q_lora_rank": None}, {f"{ATTENTION}.q_a_proj.weight": (24, 64)}, "no place for .*q_a_proj"),
]


@pytest.mark.parametrize(("config", "change", "says"), BAD_TENSORS, ids=[says for _, _, says in BAD_TENSORS])
def test_tensors_that_do_not_fit_the_config_are_refused_by_name(
    config: Config, change: dict[str, tuple[int, ...] | None], says: str, tmp_path: Path
) -> None:
    folder = with_tensors(tiny.write_model(tmp_path / "model", config), **change)
    with pytest.raises(ModelError, match=says):
        open_model(folder).build(float32, "float32")


def test_generation_ends_at_the_end_tokens_of_all_three_files(tmp_path: Path) -> None:
    """01-ai/Yi#223: the config, the generation config and the tokenizer each know end tokens that the others lack."""
    folder = tiny.write_model(tmp_path / "model", tiny.QWEN3 | {"eos_token_id": 300}, 1)
    prompt = text_ids(20)
    with open_llm(folder, "cpu:0") as llm:
        assert llm.engine.stop_ids >= {300, tiny.SPECIALS.index("<|im_end|>")}
        answer = llm.generate(prompt, greedy(16))[0].token_ids
    end = next(token for token in answer[3:] if answer.index(token) >= 3 and token not in llm.engine.stop_ids)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [301, end]}))
    with open_llm(folder, "cpu:0") as llm:
        assert llm.engine.stop_ids >= {300, 301, end, tiny.SPECIALS.index("<|im_end|>")}
        output = llm.generate(prompt, SamplingParams(max_tokens=16, temperature=0.0))[0]
    stopped = answer.index(end)
    assert (output.finish_reason, tuple(output.token_ids[:stopped])) == ("stop", tuple(answer[:stopped]))
    assert len(output.token_ids) <= stopped + 1


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_may_be_text_or_its_token_ids(name: str, tmp_path: Path) -> None:
    text = "the moon goes around"
    with open_llm(tiny.write_model(tmp_path / "model", CONFIGS[name], 6), "cpu:0") as llm:
        by_text, by_ids = llm.generate(text, greedy(8)), llm.generate(llm.encode(text), greedy(8))
    assert by_text[0].token_ids == by_ids[0].token_ids


def test_yarn_widens_the_softmax_of_latent_attention_only(tmp_path: Path) -> None:
    """The scale is multiplied by the square of 0.1 mscale_all_dim ln(factor) + 1, cos and sin by a quotient."""
    config = open_model(tiny.write_model(tmp_path / "deep", CONFIGS["deepseek_v3-yarn"])).config
    part, whole = (0.1 * scale * math.log(8) + 1 for scale in (1.0, 0.6))
    assert config.attention_scale == pytest.approx((16 + 8) ** -0.5 * whole**2)
    assert config.rope.magnitude == pytest.approx(part / whole)
    config = open_model(tiny.write_model(tmp_path / "qwen", CONFIGS["qwen2-yarn"])).config
    assert config.attention_scale == 16**-0.5
    assert config.rope.magnitude == pytest.approx(part)


def test_a_gguf_file_of_a_family_read_from_folders_only_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "qwen2")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="qwen2 is read from a folder"):
        open_model(tmp_path / "model.gguf")
