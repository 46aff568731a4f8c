"""Emulated words through the engine, each in a process of its own: torch has room for one emulated name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ....engine import tiny
from ....engine.tiny import greedy, open_llm, text_ids

CAPTURE = """
import sys
import ml_dtypes
import numpy as np
from xinheng.backends.ascend import AscendBackend
from xinheng.core import Builder, TensorType, compile, dtype, ops, sym
from xinheng.core.hal import DeviceSpec, ReferenceDevice, StateSpace
from xinheng.core.ir.types import paged_kv, paged_latent

HALF, BRAIN = dtype("float16"), dtype("bfloat16")
CASES = {
    "plain": (HALF, {}), "window": (HALF, {"window": 140}), "narrow": (HALF, {"window": 3}),
    "sinks": (BRAIN, {}), "latent": (HALF, {}), "every key": (HALF, {"causal": False}),
}

def attention(case, layers=2):
    kind, attributes = CASES[case]
    b = Builder()
    tokens, seqs, blocks = sym("tokens"), sym("seqs"), sym("blocks")
    widths = (512, 64) if case == "latent" else (32,)
    qs = [b.input(f"q{w}", TensorType(kind, (tokens, 4, w))) for w in widths]
    start, lengths = (b.input(n, TensorType(dtype("int32"), (s,))) for n, s in (("start", seqs + 1), ("lengths", seqs)))
    table = b.input("table", TensorType(dtype("int32"), (seqs, blocks)))
    sinks, made = (b.input("sinks", TensorType(kind, (4,))),) if case == "sinks" else (), {}
    for layer in range(layers):
        if case == "latent":
            cache = b.state(f"cache{layer}", paged_latent(512, 64, kind.name))
            found = ops.mla_attention(*qs, cache, start, lengths, table, scale=0.05)
        else:
            cache = b.state(f"cache{layer}", paged_kv(2, 32, 32, kind.name))
            found = ops.paged_attention(*qs, cache, start, lengths, table, *sinks, scale=0.2, **attributes)
        made |= {f"out{layer}": found[0], f"lse{layer}": found[1]}
    return b.build(**made)

steps = [([1, 1, 1], [5, 130, 200], 0), ([1, 1, 1], [6, 131, 201], 0), ([1, 1, 1], [7, 132, 90], 0),
         ([1, 1], [8, 133], 1), ([2, 1], [9, 3], 0), ([1, 0, 2], [140, 0, 250], 0), ([1, 1, 1], [141, 9, 251], 0)]
for case in sys.argv[1:]:
    rng, made = np.random.default_rng(0), {}
    kind, told = CASES[case][0], ""
    numbers = lambda *shape: rng.normal(size=shape).astype(np.float16 if kind == HALF else ml_dtypes.bfloat16)
    graph = attention(case)
    pages = {s.name: tuple(numbers(4, 128, w) if case == "latent" else numbers(4, 128, 2, 32)
             for w in ((512, 64) if case == "latent" else (32, 32))) for s, _ in graph.states}
    queries = [{v.name: numbers(*(sum(counts) + spare if n.__class__.__name__ != "int" else n for n in v.shape))
                for v in graph.inputs if v.name.startswith(("q", "sinks"))} for counts, _, spare in steps]
    for device in (AscendBackend().open(DeviceSpec.parse("ascend:910b")), ReferenceDevice()):
        exe = compile(graph, device, bounds={"tokens": 8, "seqs": 4, "blocks": 2})
        states = exe.allocate_state(StateSpace(4, 128))
        for state, _ in graph.states:
            device.write_state(states[state.name], state.type, pages[state.name])
        bound, results = exe.bind(states), []
        for (counts, keys, _), q in zip(steps, queries):
            table = np.array([[2, 0], [1, 3], [3, 1]], np.int32)[: len(keys)]
            start, lengths = np.cumsum([0, *counts]).astype(np.int32), np.array(keys, np.int32)
            bound.run({**q, "start": start, "lengths": lengths, "table": table}).wait()
            results.append([np.asarray(device.download(bound.outputs[n]), np.float64) for n in graph.outputs])
        made[device.spec] = results
        if hasattr(bound, "captured"):
            told = f"{bound.captured} {dict(bound.refused)}"
            assert all(line.kernel.startswith("npu_fused_infer_attention_score") for line in exe.receipt.lines)
    worst = 0.0
    for ours, theirs in zip(*made.values()):
        for a, b in zip(ours, theirs):
            assert np.array_equal(np.isfinite(a), np.isfinite(b)), case
            worst = max(worst, float(np.abs(np.nan_to_num(a) - np.nan_to_num(b)).max()))
    print(case, "captured", told, worst < (2e-2 if kind == BRAIN else 2e-3))
"""


def told(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("cases", [("plain", "every key", "window", "narrow"), ("sinks", "latent")])
def test_graphs_are_replayed_with_new_lists(cases: tuple[str, ...]) -> None:
    assert told(CAPTURE, *cases).splitlines() == [f"{case} captured 2 {{}} True" for case in cases]


def test_an_emulation_leaves_the_real_package_alone() -> None:
    code = """
import sys, types
sys.modules["torch_npu"] = types.ModuleType("torch_npu")
from xinheng.backends.ascend import AscendBackend
from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceSpec
try:
    AscendBackend().open(DeviceSpec.parse("ascend:910b"))
except DeviceError as error:
    print("runner" in str(error))
"""
    assert told(code).strip() == "True"


LOGITS = """
import sys
import numpy as np
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings

ids = np.random.default_rng(3).integers(3, 250, 40).tolist()
for folder in sys.argv[1:]:
    made = []
    for device in ("cpu:0", "ascend:910b"):
        runtime = RuntimeSettings(device=device, dtype="float16")
        with LLM(folder, runtime=runtime, settings=EngineSettings(max_model_len=128)) as llm:
            made.append(llm.logits(ids, chunk=16))
            assert {line.device for line in llm.receipt.lines} == {device}
    print(float(np.abs(made[0] - made[1]).max()) < 1e-2 * float(np.ptp(made[0])))
"""
FAMILIES = {"qwen3-moe": tiny.QWEN3_MOE, "glm4": tiny.GLM4, "deepseek-v3": tiny.DEEPSEEK_V3, "gemma3": tiny.GEMMA3}


@pytest.mark.slow
def test_families_have_the_logits_of_the_cpu(tmp_path: Path) -> None:
    folders = [str(tiny.write_model(tmp_path / name, config, seed=2)) for name, config in FAMILIES.items()]
    assert told(LOGITS, *folders).split() == ["True"] * len(FAMILIES)


@pytest.mark.parametrize("word", ["310p", "910a"])
def test_older_generations_answer_like_the_cpu(tmp_path: Path, word: str) -> None:
    folder = tiny.write_model(tmp_path / "llama", tiny.LLAMA, seed=1)
    made = []
    for device in (f"ascend:{word}", "cpu:0"):
        with open_llm(folder, device, runner="subprocess") as llm:
            made.append([output.token_ids for output in llm.generate([text_ids(21, seed=4)], greedy(12))])
    assert made[0] == made[1]
