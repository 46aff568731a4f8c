"""Every kernel compiles for two generations of cards without one, and fits into their multiprocessors."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from xinheng.backends._triton import offline
from xinheng.backends._triton.interpreter import interpreting

if interpreting():
    pytest.skip("kernels of this process are interpreted", allow_module_level=True)

_SPEC = importlib.util.spec_from_file_location("model_launches", Path(__file__).with_name("model_launches.py"))
assert _SPEC is not None and _SPEC.loader is not None
model_launches: Any = importlib.util.module_from_spec(_SPEC)
sys.modules["model_launches"] = model_launches
_SPEC.loader.exec_module(model_launches)
torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def check(family: str, kind: Any, capability: int) -> set[str]:
    """Compile all launches of a family; the names of their kernels."""
    seen = set()
    for launch in model_launches.launches(model_launches.FAMILIES[family](kind)):
        made = offline.compile_launch(capability, *launch)
        seen.add(made.kernel)
        assert made.cubin[:4] == b"\x7fELF"
        assert made.shared <= offline.SHARED[capability], made.kernel
        assert made.spilled == 0, f"{made.kernel} spills {made.spilled} bytes: {launch[3]}"
    return seen


@pytest.mark.parametrize("family", ["rows", "caches", "products"])
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_of_models(family: str, capability: int) -> None:
    seen = check(family, torch.bfloat16, capability)
    assert len(seen) > 2
