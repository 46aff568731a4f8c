"""Every kernel compiles for two generations of cards without one, and fits into their multiprocessors."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from xinheng.backends._triton import offline
from xinheng.backends._triton.interpreter import interpreting
from xinheng.core.errors import DeviceError

if interpreting():
    pytest.skip("kernels of this process are interpreted", allow_module_level=True)

from xinheng.backends._triton import kernels

from . import model_launches


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def check(family: str, kind: torch.dtype, capability: int) -> set[str]:
    """Compile all launches of a family; the names of their kernels."""
    seen = set()
    for launch in model_launches.launches(model_launches.FAMILIES[family](kind)):
        made = offline.compile_launch(capability, *launch)
        seen.add(made.kernel)
        assert made.cubin[:4] == b"\x7fELF"
        assert 0 < made.registers <= 255
        assert made.shared <= offline.SHARED[capability], made.kernel
        assert made.spilled == 0 or kind is not torch.bfloat16, f"{made.kernel} spills {made.spilled}: {launch[3]}"
    return seen


def defined() -> set[str]:
    """The names of all kernels."""
    modules = [module for module in vars(kernels).values() if inspect.ismodule(module)]
    return {name for module in modules for name in vars(module) if name.endswith("_kernel")}


@pytest.mark.parametrize("capability", [80, 90])
def test_a_step_of_decoding(capability: int) -> None:
    assert check("decoding", torch.bfloat16, capability) >= {"attention_kernel", "combine_kernel", "linear_kernel"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "f16", "f32"])
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_of_models(kind: torch.dtype, capability: int) -> None:
    seen = {name for family in ("rows", "caches", "products") for name in check(family, kind, capability)}
    assert seen == defined()


def test_what_does_not_compile_is_an_error() -> None:
    (launch,) = model_launches.launches(iter([next(model_launches.rows(torch.bfloat16))]))
    kernel, grid, arguments, how = launch
    with pytest.raises(DeviceError, match="rms_norm_kernel does not compile for sm_90"):
        offline.compile_launch(90, kernel, grid, arguments, {**how, "BLOCK": 33})


def test_every_kernel_is_launched_by_some_model() -> None:
    calls = (call for family in model_launches.FAMILIES.values() for call in family(torch.bfloat16))
    assert {launch[0].__name__ for launch in model_launches.launches(calls)} == defined()
