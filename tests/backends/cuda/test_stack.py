"""What is missing for a card is named by a stable code, and what cannot be opened is refused with that text."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from xinheng.backends.cuda import backend as module
from xinheng.backends.cuda.backend import CUDABackend
from xinheng.backends.cuda.driver import Card, Driver
from xinheng.backends.cuda.stack import Stack, built_for, findings, usable
from xinheng.core.errors import DeviceError
from xinheng.core.hal import DeviceSpec

H100 = Card("NVIDIA H100 80GB HBM3", 80 << 30, (9, 0), "GPU-1")
T4 = Card("Tesla T4", 15 << 30, (7, 5), "GPU-2")
DRIVER = Driver("570.86.15", (12, 8), (H100, T4))
WHOLE = Stack(DRIVER, (12, 8), True, None, (H100,))
BARE = Stack(None, None, False, None, ())


def codes(stack: Stack) -> list[str]:
    return [finding.code for finding in findings(stack)]


def test_a_whole_stack_has_nothing_to_say() -> None:
    assert codes(WHOLE) == []
    assert usable(WHOLE)


@pytest.mark.parametrize(
    ("stack", "code", "word"),
    [
        (replace(WHOLE, driver=None, cards=()), "cuda.driver-missing", "install the NVIDIA driver"),
        (replace(WHOLE, driver=replace(DRIVER, cards=()), cards=()), "cuda.no-card", "lspci"),
        (replace(WHOLE, torch=None), "cuda.torch-missing", "pip install"),
        (replace(WHOLE, torch=()), "cuda.torch-cpu-build", "download.pytorch.org"),
        (replace(WHOLE, torch=(13, 0)), "cuda.driver-too-old", "CUDA 12"),
        (replace(WHOLE, hidden="-1", cards=()), "cuda.devices-hidden", "unset"),
    ],
)
def test_what_stands_in_the_way(stack: Stack, code: str, word: str) -> None:
    assert codes(stack) == [code]
    assert word in findings(stack)[0].remedy
    assert not usable(stack)


def test_what_leaves_other_cards_or_kernels() -> None:
    low = replace(WHOLE, cards=(T4, H100))
    assert codes(low) == ["cuda.capability-too-low"]
    assert "cuda:0 (Tesla T4) has compute capability 7.5" in findings(low)[0].text
    assert codes(replace(WHOLE, triton=False)) == ["cuda.triton-missing"]
    assert usable(low)
    assert usable(replace(WHOLE, triton=False, torch=(12, 9)))  # a newer minor version runs on the same driver


@pytest.mark.parametrize(
    "stack",
    [BARE, replace(WHOLE, torch=(), triton=False, cards=(T4,)), replace(WHOLE, torch=(13, 0), hidden="", cards=())],
)
def test_everything_is_told_in_chinese_too(stack: Stack) -> None:
    for finding in findings(stack):
        text, remedy = finding.told("zh")
        assert any("\u4e00" <= letter <= "\u9fff" for letter in text)
        assert remedy


def test_the_hardware_is_named_first() -> None:
    assert codes(BARE) == ["cuda.driver-missing", "cuda.torch-missing"]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", ()),
        ("cuda: Optional[str] = '12.8'\n", (12, 8)),
        ("cuda = '13.0'\nhip: Optional[str] = None\n", (13, 0)),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.3.42131'\n", ()),
    ],
)
def test_the_build_of_torch_is_read_and_not_imported(tmp_path: Path, text: str, version: tuple[int, ...]) -> None:
    (tmp_path / "version.py").write_text(text, encoding="utf-8")
    assert built_for(tmp_path) == version


def test_the_installed_torch_tells_its_build() -> None:
    torch = pytest.importorskip("torch")
    told = torch.version.cuda
    assert built_for() == (tuple(map(int, told.split(".")[:2])) if told else ())


def test_cards_are_listed_by_the_ordinals_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "look", lambda: replace(WHOLE, cards=(T4, H100)))
    found = CUDABackend().probe()
    assert [(info.spec, info.name, info.memory) for info in found if not info.emulated] == [
        ("cuda:1", H100.name, H100.memory)
    ]
    assert found[0].driver == "driver 570.86.15, CUDA 12.8"
    assert [info.spec for info in found if info.emulated] == ["cuda:interpreted"]


@pytest.mark.parametrize(
    ("spec", "stack", "words"),
    [
        ("cuda:0", BARE, "cannot be opened: there is no NVIDIA card"),
        ("cuda", BARE, "device cuda:0 cannot be opened"),
        ("cuda:3", WHOLE, "does not exist; this process sees 1 cards"),
        ("cuda:0", replace(WHOLE, cards=(T4,)), "compute capability 7.5"),
        ("cuda:0,1", WHOLE, "does not exist"),
        ("cuda:a100", WHOLE, "there are cards such as cuda:0, and cuda:interpreted"),
        ("cuda:0@mindspore", WHOLE, "does not exist"),
    ],
)
def test_what_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, spec: str, stack: Stack, words: str) -> None:
    monkeypatch.setattr(module, "look", lambda: stack)
    with pytest.raises(DeviceError, match=words):
        CUDABackend().open(DeviceSpec.parse(spec))


def test_probing_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys; from xinheng.backends.cuda import CUDABackend; b = CUDABackend(); b.probe(); b.diagnose(); "
        "assert not {'torch', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
