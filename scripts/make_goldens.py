"""Write the golden values of two small language models, computed by `transformers`, that the engine is tested against.

Run it from the repository root, in the development environment, with the GGUF files the goldens are made of:

    python scripts/make_goldens.py --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf --gemma3 gemma-3-270m-q4_k_m.gguf \
        --out tests/golden/models

It reads the prompts from OUT/prompts.toml and writes OUT/NAME.npz and OUT/NAME.json for each model. Weights are those
`gguf.dequantize` gives in float32. The committed numbers come from a float64 run (every norm, rotation, softmax and
product in float64) over prompt + forced tokens; the forced tokens are the greedy choice of a float32 run with a cache,
and the script stops if float64 would choose others.

NAME.json: the model, the sha256 of its file, the versions, and per prompt its text, `ids` (prompt tokens), `forced`
(greedy tokens, end of sequence ignored), `least_gap` (smallest top-1 minus top-2 logit over the forced steps) and
`float32_error` (largest absolute logit difference of transformers in float32 from float64, over all rows).
NAME.npz, per prompt P with T = len(ids) + len(forced) rows, row t predicting token t + 1:
    P/max, P/min, P/mean, P/logsumexp, P/l2, P/gap  float64 [T]   over the whole vocabulary
    P/argmax                                        int32 [T]
    P/positions                                     int32 [8]     rows of which logits are kept
    P/vocab                                         int32 [8, 256]    the 64 highest of the row, then 192 spread ones
    P/logits                                        float64 [8, 256]
"""

from __future__ import annotations

import argparse
import copy
import functools
import hashlib
import json
import math
import re
import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers

Arrays = dict[str, npt.NDArray[Any]]

FORCED = 64
TOP, SPREAD = 64, 192
LEAST_GAP = 2e-3  # a smaller top-1/top-2 gap could fall either way in a correct float32 engine
CHUNK = 32  # rows of logits held at once: [32, 262144] float64 is 64 MiB


@dataclass(frozen=True)
class Loaded:
    """One model in float32 (attention "eager") and in float64, with the tokenizer of its file."""

    float32: Any
    float64: Any
    tokenizer: Any


def check_config(config: Any, path: Path) -> None:
    """Stop unless the configuration says what the file's metadata says, and what the metadata leaves out is right."""
    fields = gguf.GGUFReader(path).fields
    arch = fields["general.architecture"].contents()
    found = {key.removeprefix(f"{arch}."): field.contents() for key, field in fields.items() if key.startswith(arch)}
    expected = {
        "num_hidden_layers": found["block_count"],
        "hidden_size": found["embedding_length"],
        "intermediate_size": found["feed_forward_length"],
        "num_attention_heads": found["attention.head_count"],
        "num_key_value_heads": found["attention.head_count_kv"],
        "rms_norm_eps": found["attention.layer_norm_rms_epsilon"],
        "vocab_size": len(fields["tokenizer.ggml.tokens"].contents()),
        "tie_word_embeddings": True,
    }
    full = {"rope_theta": found["rope.freq_base"], "rope_type": "default"}
    if arch == "llama":
        expected |= {"head_dim": found["rope.dimension_count"], "hidden_act": "silu", "rope_parameters": full}
    else:
        # Not in the metadata; Gemma 3 technical report, arXiv:2503.19786: five local layers, then a global one.
        local = {"rope_theta": 10_000.0, "rope_type": "default"}
        kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(found["block_count"])]
        expected |= {
            "head_dim": found["attention.key_length"],
            "query_pre_attn_scalar": found["attention.key_length"],
            "sliding_window": found["attention.sliding_window"],
            "layer_types": kinds,
            "rope_parameters": {"full_attention": full, "sliding_attention": local},
            "hidden_activation": "gelu_pytorch_tanh",
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "use_bidirectional_attention": False,
        }
    wrong = {name: getattr(config, name) for name, value in expected.items() if getattr(config, name) != value}
    if wrong:
        raise SystemExit(f"{path.name}: transformers read {wrong}, expected {[expected[name] for name in wrong]}")


def norm64(x: torch.Tensor, *, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm of x [..., D] in float64; transformers' own casts to float32."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotary64(
    x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None, *, config: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [1, T, D] in float64; transformers' own takes its angles in float32."""
    parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    exponents = torch.arange(0, config.head_dim, 2, dtype=x.dtype) / config.head_dim
    angles = position_ids[..., None].to(x.dtype) * parameters["rope_theta"] ** -exponents
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def in_float64(model: Any) -> Any:
    """A copy of the model that computes everything in float64, attention by torch's own operator."""
    model = copy.deepcopy(model).double()
    model.set_attn_implementation("sdpa")  # "eager" takes its softmax in float32
    config = model.config
    offset = 1.0 if config.model_type == "gemma3_text" else 0.0
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = functools.partial(norm64, weight=module.weight + offset, eps=config.rms_norm_eps)
        elif kind.endswith("RotaryEmbedding"):
            module.forward = functools.partial(rotary64, config=config)
        elif kind.endswith("ScaledWordEmbedding"):
            module.embed_scale = torch.tensor(math.sqrt(config.hidden_size), dtype=torch.float64)
    return model


def load(path: Path) -> Loaded:
    """Model and tokenizer as transformers reads them from the GGUF file, checked against its metadata."""
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()
    check_config(model.config, path)
    tokens: Any = transformers.AutoTokenizer
    return Loaded(model, in_float64(model), tokens.from_pretrained(path.parent, gguf_file=path.name))


def greedy(model: Any, ids: list[int]) -> list[int]:
    """The next FORCED tokens by argmax, one at a time over a cache; end of sequence has no meaning here."""
    chosen: list[int] = []
    cache, step = None, ids
    while len(chosen) < FORCED:
        out = model(torch.tensor([step]), cache=cache, use_cache=True, logits_to_keep=1)
        cache, step = out.cache, [int(out.logits[0, -1].argmax())]
        chosen += step
    return chosen


def statistics(logits: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is kept of every row of logits [rows, V]."""
    top, order = logits.topk(2)
    return {
        "max": top[:, 0],
        "min": logits.amin(-1),
        "mean": logits.mean(-1),
        "logsumexp": logits.logsumexp(-1),
        "l2": logits.norm(dim=-1),
        "gap": top[:, 0] - top[:, 1],
        "argmax": order[:, 0].int(),
    }


def kept_positions(prompt: int, total: int) -> list[int]:
    """Eight rows: first, middle, last of the prompt, some forced, last; around position 512 where the prompt has it."""
    middle = [prompt // 2, 511, 512] if prompt > 513 else [prompt // 2, prompt + 8, prompt + 48]
    return sorted({0, *middle, prompt - 1, prompt + 16, prompt + 32, total - 1})


def kept_vocabulary(row: torch.Tensor) -> torch.Tensor:
    """The TOP best ids of a row of logits [V], best first, then SPREAD others evenly over the vocabulary."""
    top = row.topk(TOP).indices
    grid = torch.linspace(0, len(row) - 1, TOP + SPREAD, dtype=torch.float64).long()
    rest = grid[~torch.isin(grid, top)]
    return torch.cat((top, rest[torch.linspace(0, len(rest) - 1, SPREAD, dtype=torch.float64).long()]))


def golden(loaded: Loaded, text: str) -> tuple[dict[str, Any], Arrays]:
    """The record (JSON) and the arrays of one prompt."""
    ids: list[int] = loaded.tokenizer(text).input_ids
    forced = greedy(loaded.float32, ids)
    tokens = torch.tensor([ids + forced])
    hidden32, hidden = (model.model(tokens).last_hidden_state[0] for model in (loaded.float32, loaded.float64))
    positions = kept_positions(len(ids), len(hidden))
    rows: list[dict[str, torch.Tensor]] = []
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    error = 0.0
    for start in range(0, len(hidden), CHUNK):
        logits = loaded.float64.lm_head(hidden[start : start + CHUNK])
        logits32 = loaded.float32.lm_head(hidden32[start : start + CHUNK])
        error = max(error, float((logits - logits32).abs().max()))
        rows.append(statistics(logits))
        for position in (position for position in positions if start <= position < start + CHUNK):
            vocabulary = kept_vocabulary(logits[position - start])
            kept.append((vocabulary.int(), logits[position - start, vocabulary]))
    arrays: Arrays = {name: torch.cat([row[name] for row in rows]).numpy() for name in rows[0]}
    steps = slice(len(ids) - 1, -1)
    least = float(arrays["gap"][steps].min())
    if arrays["argmax"][steps].tolist() != forced:
        raise SystemExit(f"float64 chooses other tokens than float32 after {text!r}; take another prompt")
    if least < LEAST_GAP:
        raise SystemExit(f"a gap of {least:.1e} is too near a tie after {text!r}; take another prompt")
    arrays["positions"] = np.array(positions, np.int32)
    arrays["vocab"] = torch.stack([vocabulary for vocabulary, _ in kept]).numpy()
    arrays["logits"] = torch.stack([values for _, values in kept]).numpy()
    return {"text": text, "ids": ids, "forced": forced, "least_gap": least, "float32_error": error}, arrays


def write(name: str, path: Path, out: Path) -> None:
    """Write NAME.npz and NAME.json for the model in the file."""
    loaded = load(path)
    record: dict[str, Any] = {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "logits": "float64, from weights dequantized to float32",
        "versions": {name: version(name) for name in ("gguf", "numpy", "tokenizers", "torch", "transformers")},
        "prompts": {},
    }
    arrays: Arrays = {}
    for prompt, entry in tomllib.loads((out / "prompts.toml").read_text(encoding="utf-8")).items():
        if name not in entry["models"]:
            continue
        record["prompts"][prompt], values = golden(loaded, entry["text"])
        arrays |= {f"{prompt}/{key}": value for key, value in values.items()}
        print(name, prompt, {key: record["prompts"][prompt][key] for key in ("least_gap", "float32_error")}, flush=True)
    np.savez_compressed(out / f"{name}.npz", **arrays)
    lines = json.dumps(record, ensure_ascii=False, indent=1)
    ids_on_one_line = re.sub(r"\[[\s\d,]+\]", lambda ids: str(json.loads(ids[0])), lines)
    (out / f"{name}.json").write_text(ids_on_one_line + "\n", encoding="utf-8")


def main() -> None:
    """Parse the command line and write the goldens of both models."""
    parser = argparse.ArgumentParser(description="Write the golden values of the small language models.")
    parser.add_argument("--smollm2", type=Path, required=True, help="SmolLM2-135M-Instruct Q4_1, a GGUF file")
    parser.add_argument("--gemma3", type=Path, required=True, help="Gemma 3 270M Q4_K_M, a GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="folder with prompts.toml, written to")
    arguments = parser.parse_args()
    with torch.inference_mode():
        write("smollm2", arguments.smollm2, arguments.out)
        write("gemma3", arguments.gemma3, arguments.out)


if __name__ == "__main__":
    main()
