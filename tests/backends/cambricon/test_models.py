"""Models on emulated cards, forced along the greedy ids of the processor: the same token is likeliest.

Positions count whose two likeliest tokens lie further apart than the processor itself moves them when it computes in
the dtype of the card. Torch has room for one device of this kind in a process, so each test has one of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ...engine import tiny

FORCED = """
import sys
from pathlib import Path
import numpy as np
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings, SamplingParams

folder, prompt, count, most = Path(sys.argv[1]), [int(i) for i in sys.argv[2].split(",")], *map(int, sys.argv[3:5])
settings = EngineSettings(max_model_len=128)
ids = prompt

def logits(device, kind):
    global ids
    with LLM(folder, runtime=RuntimeSettings(device=device, dtype=kind), settings=settings) as llm:
        if ids is prompt:
            params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
            ids = [*prompt, *map(int, llm.generate(prompt, params)[0].token_ids)]
        return llm.logits(ids, chunk=24)[len(prompt) - 1 : -1], llm.receipt

want, _ = logits("cpu:0", "float32")
rows, best = np.arange(count), np.argsort(want, -1)[:, -2:]
assert [*map(int, best[:, 1])] == ids[len(prompt) :]
def apart(made):
    return made[rows, best[:, 1]] - made[rows, best[:, 0]]
noise = {}
for given in sys.argv[5:]:
    device, kind = given.split("=")
    if kind not in noise:
        noise[kind] = float(np.abs(apart(logits("cpu:0", kind)[0]) - apart(want)).max())
    made, receipt = logits(device, kind)
    assert {line.device for line in receipt.lines} == {device}
    fused = any(line.kernel.startswith("tmo_") for line in receipt.lines)
    assert fused == ("@torch" not in device), device
    assert fused != any("torch_mlu_ops is not installed" in note for note in receipt.notes)
    sure = apart(want) > noise[kind]
    same = made.argmax(-1) == want.argmax(-1)
    print(device, kind, "noise", noise[kind], "sure", int(sure.sum()), "same", int(same.sum()))
    assert same[sure].all(), device
    assert count - sure.sum() <= most, f"{count - sure.sum()} of {count} positions are below the noise"
    assert float(np.abs(made - want).max()) < {"float16": 2e-2, "bfloat16": 1.5e-1}[kind] * float(np.ptp(want)), device
"""


def forced(model: Path, prompt: list[int], count: int, most: int, *devices: str) -> None:
    """Demand the same likeliest tokens; at most `most` of `count` positions may be below the noise."""
    given = [str(model), ",".join(map(str, prompt)), str(count), str(most), *devices]
    done = subprocess.run([sys.executable, "-c", FORCED, *given], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("config", "devices"),
    [
        ("LLAMA", ("mlu370=float16", "mlu590@tmo_1_3=float16", "mlu590@torch=float16")),
        ("QWEN3_MOE", ("mlu590=float16",)),
        ("GLM4", ("mlu590=float16",)),
        ("DEEPSEEK_V3", ("mlu590=float16",)),
    ],
)
def test_tiny_models(tmp_path: Path, config: str, devices: tuple[str, ...]) -> None:
    folder = tiny.write_model(tmp_path / "model", getattr(tiny, config), seed=2)
    forced(folder, tiny.text_ids(9, seed=3), 16, 4, *(f"cambricon:{device}" for device in devices))


@pytest.mark.slow
def test_smollm2(smollm2_path: Path) -> None:
    prompt = [504, 6783, 3935, 1130, 260, 3103, 2268, 897]  # "The moon goes around the earth once every"
    forced(smollm2_path, prompt, 64, 24, "cambricon:mlu590=bfloat16", "cambricon:mlu370=float16")
