"""The device `cuda:interpreted`: Triton's interpreter agrees with the float64 reference within the suite's bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from xinheng.backends._triton import interpreter
from xinheng.core.errors import DeviceError

OPS = (
    *("rms_norm", "add_rms_norm", "layer_norm", "add_rms_norm_quant", "silu_and_mul", "gelu_and_mul"),
    *("silu_and_mul_quant", "rotary_embedding", "write_cache", "write_latent_cache", "kv_norm_rope_cache"),
    *("dynamic_quant", "quant_matmul", "int_matmul", "matmul", "linear", "embedding", "dequantize", "batched_linear"),
    *("grouped_linear", "fused_moe", "moe_gating_topk", "moe_permute", "moe_unpermute", "argmax", "random_uniform"),
    *("top_k_top_p_sample", "paged_attention", "sdpa_varlen", "mla_attention"),
)
"""Those with kernels in Triton; what else a level asks for is torch."""


def conformance(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The outcomes of a run in processes of its own, which choose the interpreter for themselves."""
    environ = {name: value for name, value in os.environ.items() if name != interpreter.VARIABLE}
    command = [sys.executable, "-m", "xinheng", "conformance", "run", "--device", "cuda:interpreted"]
    ran = subprocess.run(
        [*command, "--op", ",".join(OPS), "--report", str(folder), *arguments],
        capture_output=True, text=True, env=environ, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    outcomes: list[dict[str, Any]] = report["outcomes"]
    return outcomes


def test_a_sample_of_all_kernels_agrees_with_the_reference(tmp_path: Path) -> None:
    made = conformance(tmp_path, "--shard", "1/500")
    assert len(made) > 8
    passed = [outcome for outcome in made if outcome["verdict"] == "pass"]
    assert all(outcome["kernel"].startswith(("triton_", "torch_")) for outcome in passed if outcome.get("kernel"))
    assert len({outcome["kernel"] for outcome in passed if outcome.get("kernel", "").startswith("triton_")}) > 5


@pytest.mark.slow
@pytest.mark.parametrize("shard", [f"{number}/40" for number in (5, 15, 25, 35)])
def test_more_of_the_cases(tmp_path: Path, shard: str) -> None:
    assert len(conformance(tmp_path, "--shard", shard)) > 100


def python(code: str, **variables: str) -> str:
    """What a program prints in a process of its own, without the variable of the interpreter unless it is given."""
    environ = {name: value for name, value in os.environ.items() if name != interpreter.VARIABLE}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environ | variables, check=True).stdout


def test_a_process_interprets_or_compiles() -> None:
    opened = "from xinheng.core.plugins import PluginManager; d = PluginManager().open('cuda:interpreted'); "
    assert python(opened + "print(d.spec, d.capabilities.arithmetic.determinism)") == "cuda:interpreted D4\n"
    assert python(opened + "print(d.name)", TRITON_INTERPRET="1") == "Triton kernels, interpreted on the processor\n"
    late = "import xinheng.backends._triton.kernels; from xinheng.core.errors import DeviceError\ntry: "
    assert "compiles its Triton kernels" in python(f"{late}{opened.rstrip('; ')}\nexcept DeviceError as e: print(e)")


def test_a_card_is_refused_where_kernels_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(interpreter.VARIABLE, "1")
    with pytest.raises(DeviceError, match=r"cuda:0: this process interprets .* engine\.runner to 'subprocess'"):
        interpreter.demand(False, "cuda:0")


def test_fast_mode_admits_libraries_and_promises_less() -> None:
    code = (
        "from xinheng.core.plugins import PluginManager; from xinheng.core.hal import DeviceOptions, Numerics; "
        "d = PluginManager().open('cuda:interpreted', DeviceOptions(numerics=Numerics('fast'))); "
        "print(d.capabilities.arithmetic.determinism, "
        "*(d.kernels.candidates(op)[0].name for op in ('linear', 'matmul', 'paged_attention')))"
    )
    assert python(code) == "D1 cublas_linear cublas_matmul triton_paged_attention_rounded\n"
