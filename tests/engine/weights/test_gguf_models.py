"""Two real GGUF models: the last rows of some tensors equal what the public `gguf` package (0.19) decodes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xinheng.engine.weights import Checkpoint, open_checkpoint

ROWS = 64

# name: (shape, scheme or None for a vector, first 32 digits of the SHA-256 of the last 64 rows in float32)
SMOLLM2: dict[str, tuple[tuple[int, ...], str | None, str]] = {
    "model.embed_tokens.weight": ((49152, 576), "q8_0", "038ecde5f0185702601906136bc02b6a"),
    "model.layers.0.self_attn.q_proj.weight": ((576, 576), "q4_1", "066c5b5450c0da44e3f151aeb4a52f06"),
    "model.layers.17.mlp.down_proj.weight": ((576, 1536), "q4_1", "e28c2a9dd5fe4f78807c378a3fee7525"),
    "model.layers.29.post_attention_layernorm.weight": ((576,), None, "fe2935ae9e74dde28ef6a2cfd4d93c9e"),
    "model.norm.weight": ((576,), None, "3b87f8e27335e67fc08f159cabfd2d18"),
}
GEMMA3: dict[str, tuple[tuple[int, ...], str | None, str]] = {
    "model.embed_tokens.weight": ((262144, 640), "q8_0", "bfa65f841e8a52dfaa7ebf90cbd34515"),
    "model.layers.0.self_attn.v_proj.weight": ((256, 640), "q8_0", "1dad4fbf9d3229e7c8395f74a70d2f33"),
    "model.layers.0.self_attn.o_proj.weight": ((640, 1024), "q4_k", "df242ce1e114d5d155da890335a3bd82"),
    "model.layers.0.mlp.down_proj.weight": ((640, 2048), "q6_k", "d36ff28d1fcc11d1456a1e597d4b9e25"),
    "model.layers.0.mlp.gate_proj.weight": ((2048, 640), "q5_0", "2a17f368ed19e5847858ff2cb1e1abdc"),
    "model.layers.5.pre_feedforward_layernorm.weight": ((640,), None, "050f0d0850f90144c882cee8dba14c71"),
    "model.layers.5.post_attention_layernorm.weight": ((640,), None, "3d4a663e8a1995a652ee1694b3e862f3"),
    "model.layers.17.self_attn.q_norm.weight": ((256,), None, "7e901faf5e3cdafcb322150549f7bc46"),
}


def check(checkpoint: Checkpoint, golden: dict[str, tuple[tuple[int, ...], str | None, str]]) -> None:
    for name, (shape, kind, digest) in golden.items():
        assert checkpoint.shape(name) == shape
        if kind is None:
            values: np.ndarray[Any, Any] = checkpoint.array(name)
        else:
            source = checkpoint.source(name)
            assert source.type.scheme == kind
            values = source.rows(shape[0] - ROWS, shape[0]).unpack()
        assert hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()[:32] == digest, name
    assert not [name for name in checkpoint.names() if not name.startswith("model.")]


@pytest.fixture
def smollm2(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture
def gemma3(gemma3_path: Path) -> Checkpoint:
    return open_checkpoint(gemma3_path)


def test_smollm2(smollm2: Checkpoint) -> None:
    check(smollm2, SMOLLM2)
    assert len(smollm2.names()) == 272
    assert smollm2.nbytes == 96_576_768
    assert smollm2.metadata["llama.rope.freq_base"] == 100_000.0
    assert len(smollm2.metadata["tokenizer.ggml.merges"]) == 48_900
    assert smollm2.metadata["tokenizer.ggml.merges"][0] == "Ġ t"


def test_gemma3(gemma3: Checkpoint) -> None:
    check(gemma3, GEMMA3)
    assert len(gemma3.names()) == 236
    assert gemma3.nbytes == 246_587_904
    tokens = gemma3.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert (len(tokens), tokens[:3]) == (262_144, ["<pad>", "<eos>", "<bos>"])
    assert gemma3.metadata["tokenizer.ggml.add_bos_token"] is True
