"""Overrides steer single ops of a real model: what runs changes, what comes out does not."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from xinheng.core.errors import SettingsError, UnsupportedOp
from xinheng.core.ops import OPSET
from xinheng.core.plugins import PluginManager
from xinheng.core.receipt import Receipt
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings
from xinheng.engine.models import open_model

from . import tiny

PROMPT = tiny.text_ids(20)


def logits(model: Path, **overrides: str) -> tuple[NDArray[np.float32], Receipt]:
    """The logits of a prompt with overrides, in strict float32 on the processor."""
    runtime = RuntimeSettings(device="cpu:0", dtype="float32", numerics="strict", overrides=overrides)
    with LLM(model, runtime=runtime, settings=EngineSettings(max_num_batched_tokens=64, max_model_len=64)) as llm:
        return llm.logits(PROMPT), llm.receipt


@cache
def plain(model: Path) -> NDArray[np.float32]:
    return logits(model)[0]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("overridden") / "tiny-llama", tiny.LLAMA)


def choices(op: str) -> list[str]:
    """Everything that may be asked of an op on floats on the processor."""
    # rows that no product reads stay as stored, whatever kernel is asked for
    left_out = {f"numpy_{op}", "native_embedding_tiles"}
    kernels = [k for k in PluginManager().open("cpu:0").kernels.candidates(op) if k.name not in left_out]
    composite = ["decompose"] if OPSET[op].composite else []
    return ["device", "reference", *composite, *(f"@{kernel.name}" for kernel in kernels)]


STATELESS = ["linear", "embedding", "rms_norm", "rotary_embedding", "silu_and_mul", "add", "index_select", "reshape"]


@pytest.mark.parametrize("op", STATELESS)
def test_each_choice_for_an_op_gives_the_same_logits(llama: Path, op: str) -> None:
    for choice in choices(op):
        got, receipt = logits(llama, **{op: choice})
        np.testing.assert_allclose(got, plain(llama), atol=2e-5 * np.abs(plain(llama)).max())
        lines = [line for line in receipt.lines if line.op == op]
        if choice == "decompose":
            assert not lines and [entry.op for entry in receipt.decomposed] == [op]
        elif choice == "reference":
            assert {(line.kernel, line.device, line.moved) for line in lines} == {("reference", "reference", True)}
            assert receipt.crossings
        elif choice.startswith("@"):
            assert {line.kernel for line in lines} == {choice[1:]}
            assert receipt.moved == 0


def test_the_ops_of_a_cache_move_together_or_not_at_all(llama: Path) -> None:
    got, receipt = logits(llama, write_cache="reference", paged_attention="reference")
    np.testing.assert_allclose(got, plain(llama), atol=2e-5 * np.abs(plain(llama)).max())
    assert receipt.by_device()["reference"] == 4
    with pytest.raises(
        UnsupportedOp, match=r"state cache\.0 cannot be on two devices .*; change runtime\.overrides for all"
    ):
        logits(llama, paged_attention="reference")


def test_kernels_of_a_cache(llama: Path) -> None:
    for kernel in PluginManager().open("cpu:0").kernels.candidates("paged_attention"):
        got, receipt = logits(llama, paged_attention=f"@{kernel.name}")
        np.testing.assert_allclose(got, plain(llama), atol=2e-5 * np.abs(plain(llama)).max())
        assert {line.kernel for line in receipt.lines if line.op == "paged_attention"} == {kernel.name}
    with pytest.raises(SettingsError, match="has no kernel 'nonsense'; it has"):
        logits(llama, paged_attention="@nonsense")


WITNESSES = [info.spec for info in PluginManager().backend("sim").probe()]


@pytest.mark.parametrize("spec", WITNESSES)
def test_devices_with_difficult_contracts_share_a_model_with_the_reference(llama: Path, spec: str) -> None:
    settings = EngineSettings(max_num_batched_tokens=32, max_num_seqs=2, max_model_len=64)
    made = []
    for overrides in ({}, {"silu_and_mul": "reference", "write_cache": "reference", "paged_attention": "reference"}):
        runtime = RuntimeSettings(device=spec, dtype="float32", numerics="strict", overrides=overrides)
        with LLM(llama, runtime=runtime, settings=settings) as llm:
            made.append([output.token_ids for output in llm.generate([PROMPT, PROMPT[:5]], tiny.greedy(6))])
            assert llm.receipt.by_device().get("reference", 0) == (6 if overrides else 0)
    assert made[0] == made[1]


@pytest.mark.parametrize(
    "overrides",
    [
        {"rms_norm": "decompose", "rotary_embedding": "decompose", "silu_and_mul": "decompose"},
        {"silu_and_mul": "reference", "linear": "@torch_linear", "rotary_embedding": "@torch_rotary_embedding"},
    ],
    ids=["decompose", "mixed"],
)
def test_a_downloaded_model(smollm2_path: Path, overrides: dict[str, str]) -> None:
    got, receipt = logits(smollm2_path, **overrides)
    want = plain(smollm2_path)
    np.testing.assert_allclose(got, want, atol=1e-3 * np.abs(want).max())
    assert (got.argmax(axis=-1) == want.argmax(axis=-1)).all()
    layers = open_model(smollm2_path).config.num_layers
    if "silu_and_mul" in {line.op for line in receipt.lines}:
        assert receipt.moved == layers
        assert {crossing.tensors for crossing in receipt.crossings} == {layers, 2 * layers}
    else:
        assert {entry.op: entry.count for entry in receipt.decomposed} == {
            "rms_norm": 2 * layers + 1,
            "rotary_embedding": 2 * layers,
            "silu_and_mul": layers,
        }
