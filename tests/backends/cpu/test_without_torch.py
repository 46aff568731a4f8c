"""The processor serves models where torch is not installed; what it then cannot do it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ...engine import tiny

HIDDEN = "import sys; sys.modules['torch'] = None  # as if it were not installed\n"


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


GENERATE = """
import json
from xinheng.core.settings import RuntimeSettings
from xinheng.engine import LLM, EngineSettings, SamplingParams
settings = EngineSettings(max_num_batched_tokens=256)
with LLM(sys.argv[1], runtime=RuntimeSettings(device="cpu:0", numerics=sys.argv[2]), settings=settings) as llm:
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    print(json.dumps([llm.generate([5, 6, 7], params)[0].token_ids, llm.info.receipt]))
"""


@pytest.mark.parametrize("mode", ["strict", "fast"])
def test_a_model_answers_as_with_torch(tmp_path: Path, mode: str) -> None:
    folder = tiny.write_model(tmp_path / "llama", tiny.LLAMA, seed=3)
    ids, receipt = json.loads(run(GENERATE, str(folder), mode))
    known = subprocess.run(
        [sys.executable, "-c", "import sys\n" + GENERATE, str(folder), mode], capture_output=True, text=True, check=True
    )
    assert ids == json.loads(known.stdout)[0]
    assert any("torch is not installed" in note for note in receipt["notes"])


def test_devices_and_doctor_know_it() -> None:
    found = json.loads(
        run(
            "import json\nfrom xinheng.backends.cpu import CPUBackend\nb = CPUBackend()\n"
            "print(json.dumps([[d.spec for d in b.probe()], [[f.code, f.remedy] for f in b.diagnose()]]))"
        )
    )
    assert found == [["cpu:0"], [["cpu.torch-missing", "pip install 'xinheng[cpu]'"]]]


def test_ops_that_only_torch_has_are_named() -> None:
    program = """
from xinheng.core import ops
from xinheng.core.compiler import compile
from xinheng.core.errors import UnsupportedOp
from xinheng.core.ir import Builder, TensorType
from xinheng.core.ir.dtype import float32
from xinheng.core.plugins import PluginManager
b = Builder("t")
x = b.input("x", TensorType(float32, (1, 1, 8, 8)))
graph = b.build(ops.maximum(x, x))
try:
    compile(graph, PluginManager().open("cpu:0"))
except UnsupportedOp as error:
    print(error)
"""
    assert "cpu:0 cannot run maximum" in run(program)
