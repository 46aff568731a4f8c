"""What a process that generates on the CPU has loaded, and how much memory it takes: no framework, and one copy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from . import tiny

FRAMEWORKS = ("torch", "onnx", "transformers", "pandas", "scipy", "mindspore", "safetensors.torch")
UNUSED = ("asyncio", "jinja2", "cryptography", "typer", "rich", "pydantic_settings", "stevedore.dispatch")
"""What other commands need and a prompt does not."""
HIDDEN, INNER, LAYERS, VOCABULARY = 512, 1536, 6, 32000
PROGRAM = """
import json, sys
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings, SamplingParams

settings = EngineSettings(max_num_seqs=2, max_model_len=128, max_num_batched_tokens=256)
made = []
for path, mode in json.loads(sys.argv[1]):
    with LLM(path, runtime=RuntimeSettings(device="cpu", numerics=mode), settings=settings) as llm:
        for temperature in (0.0, 0.8):
            params = SamplingParams(max_tokens=4, temperature=temperature, top_p=0.9, top_k=20, seed=1, ignore_eos=True)
            (output,) = llm.generate([[1, 2, 3]], params)
            made.append(len(output.token_ids))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"tokens": made, "modules": sorted(sys.modules), "peak": int(status["VmHWM"].split()[0]) * 1024}))
"""

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is told by /proc"),
    pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="no native kernels without a compiler"),
]


def generated(*models: tuple[Path, str]) -> dict[str, Any]:
    """What a new process tells that generates with each model, greedy and sampled."""
    given = json.dumps([(str(path), mode) for path, mode in models])
    ran = subprocess.run([sys.executable, "-c", PROGRAM, given], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    assert told["tokens"] == [4] * (2 * len(models))
    return told


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random eight-bit weights with a byte-level vocabulary."""
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(8)
    writer.add_head_count_kv(8)
    writer.add_rope_dimension_count(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(["a", "b", "ab", *(f"t{i}" for i in range(3, VOCABULARY))])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    rng = np.random.default_rng(1)

    def matrix(name: str, rows: int, columns: int) -> None:
        blocks = rng.integers(0, 256, (rows, columns // 32, 34), np.uint8)
        blocks[..., :2] = np.array([0.01], np.float16).view(np.uint8)
        writer.add_tensor(f"{name}.weight", blocks.reshape(rows, -1), raw_dtype=GGMLQuantizationType.Q8_0)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))

    for i in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"blk.{i}.{name}", HIDDEN, HIDDEN)
        for name, rows, columns in (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
            matrix(f"blk.{i}.ffn_{name}", rows, columns)
        norm(f"blk.{i}.attn_norm")
        norm(f"blk.{i}.ffn_norm")
    matrix("token_embd", VOCABULARY, HIDDEN)
    matrix("output", VOCABULARY, HIDDEN)
    norm("output_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("mode", ["strict", "fast"])
def test_a_file_takes_its_size_once_and_no_framework(file: Path, mode: str) -> None:
    told = generated((file, mode))
    assert [name for name in (*FRAMEWORKS, *UNUSED) if name in told["modules"]] == []
    cache = 2 * 2 * LAYERS * 128 * HIDDEN * 4
    assert told["peak"] < 1.05 * file.stat().st_size + cache + 150e6


@pytest.mark.parametrize("mode", ["strict", "fast"])
def test_no_family_needs_a_framework(tmp_path: Path, mode: str) -> None:
    families = {
        name: tiny.write_model(tmp_path / name.lower(), getattr(tiny, name))
        for name in ("LLAMA3", "LLAMA_BIAS", "MISTRAL", "GEMMA3_CAPPED", "QWEN2", "QWEN3", "GLM4", "QWEN3_MOE")
    }
    families["DEEPSEEK_V3"] = tiny.write_model(tmp_path / "deepseek", tiny.DEEPSEEK_V3)
    told = generated(*((path, mode) for path in families.values()))
    assert [name for name in FRAMEWORKS if name in told["modules"]] == []
