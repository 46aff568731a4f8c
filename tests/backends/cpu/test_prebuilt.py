"""Kernels compiled beforehand: which object a processor gets, and what a device without a compiler says."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest

from xinheng.backends.cpu import CPUBackend, jit, prebuilt
from xinheng.backends.cpu.jit import NativeUnavailable
from xinheng.backends.cpu.prebuilt import TARGETS, V3, V4, Target, build, load_prebuilt, object_name, supported
from xinheng.core import Builder, TensorType, ops
from xinheng.core.compiler import compile
from xinheng.core.hal import DeviceOptions, DeviceSpec
from xinheng.core.ir.dtype import float32

VISIBLE = 'extern "C" __attribute__((visibility("default"))) '
compiler = pytest.mark.skipif(
    "CXX" not in os.environ and not any(map(shutil.which, ("g++", "clang++"))), reason="no C++ compiler on this machine"
)


def processor(root: Path, key: str, features: str) -> Path:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\nmodel name\t: some\n{key}\t\t: {features}\n\nprocessor\t: 1\n")
    return root


@pytest.mark.parametrize(
    ("machine", "key", "features", "first"),
    [
        ("x86_64", "flags", V4 | {"avx512_vnni", "avx512_bf16", "amx_tile"}, "x86-64-v4-vnni-bf16"),
        ("x86_64", "flags", V4 | {"avx512_vnni"}, "x86-64-v4-vnni"),
        ("x86_64", "flags", V4, "x86-64-v3"),
        ("x86_64", "flags", V3 | {"avx_vnni"}, "x86-64-v3"),
        ("x86_64", "flags", V3 - {"fma"}, "x86-64"),
        ("aarch64", "Features", {"asimd", "asimddp", "sve"}, "armv8.2-a-dotprod"),
        ("aarch64", "Features", {"asimd"}, "armv8-a"),
    ],
)
def test_a_processor_gets_what_it_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, key: str, features: set[str], first: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    runs = supported(processor(tmp_path, key, " ".join(features)))
    assert runs[0].name == first
    assert [t for t in TARGETS[machine] if t in runs] == runs


def test_an_unknown_processor_gets_only_what_all_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert [target.name for target in supported(tmp_path)] == ["x86-64"]
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert supported(tmp_path) == []
    with pytest.raises(NativeUnavailable, match="no prebuilt object for any riscv64"):
        load_prebuilt(tmp_path)
    with pytest.raises(NativeUnavailable, match="no prebuilt targets for riscv64"):
        build(tmp_path / "made")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of objects for three kinds of this machine, the first of which needs what no processor has."""
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "answer.cpp").write_text(VISIBLE + "int answer() { return ANSWER; }\n")
    kinds = tuple(
        Target(name, (f"-DANSWER={number}",), frozenset(needs))
        for name, number, needs in (("future", 3, {"telepathy"}), ("better", 2, ()), ("plain", 1, ()))
    )
    monkeypatch.setattr(jit, "SOURCES", sources)
    monkeypatch.setitem(prebuilt.TARGETS, platform.machine(), kinds)
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "kernels-old.so").write_bytes(b"of a version before")
    assert [path.name for path in build(folder)] == [object_name(kind) for kind in kinds]
    assert len(list(folder.iterdir())) == 3
    return folder


@compiler
def test_the_best_intact_object_is_loaded(made: Path) -> None:
    found, name = load_prebuilt(made)
    assert (found.library.answer(), name, found.compiled) == (2, "better", False)
    found.path.unlink()  # this process has it mapped
    found.path.write_bytes(b"damaged")
    found, name = load_prebuilt(made)
    assert (found.library.answer(), name) == (1, "plain")


@compiler
def test_objects_of_other_sources_are_not_loaded(made: Path) -> None:
    (jit.SOURCES / "answer.cpp").write_text('extern "C" int answer() { return -1; }\n')
    with pytest.raises(NativeUnavailable, match="no prebuilt object for better, plain is in"):
        load_prebuilt(made)


@compiler
def test_a_device_without_a_compiler_runs_prebuilt_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor_build: object
) -> None:
    named = os.environ.get("XINHENG_TEST_CACHE")
    native = jit.load((Path(named) if named else Path(__file__).parents[3] / ".cache") / "jit")
    runs = supported()
    if not runs:
        pytest.skip(f"there are no prebuilt targets for {platform.machine()}")
    monkeypatch.setenv("CXX", "/nonexistent")
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    without, notes = opened(tmp_path)
    assert without == "torch_add"
    assert "'/nonexistent', does not exist" in notes[0]
    assert "slower torch kernels" in notes[0]
    assert f"is in {tmp_path}" in notes[0]
    shutil.copyfile(native.path, tmp_path / object_name(runs[-1]))
    kernel, notes = opened(tmp_path)
    assert kernel == "native_add"
    assert notes == (
        f"native CPU kernels are those prebuilt for {runs[-1].name}: "
        "the compiler named by CXX, '/nonexistent', does not exist",
    )


def opened(cache: Path) -> tuple[str, tuple[str, ...]]:
    """The kernel of `add` on a CPU opened now, which has computed something, and the notes of the receipt."""
    device = CPUBackend().open(DeviceSpec.parse("cpu"), DeviceOptions(cache_dir=cache / "cache"))
    b = Builder("sum")
    x = b.input("x", TensorType(float32, (3,)))
    exe = compile(b.build(y=ops.add(x, x)), device)
    made = exe.bind({})
    made.run({"x": np.arange(3, dtype=np.float32)}).wait()
    np.testing.assert_array_equal(device.download(made.outputs["y"]), [0, 2, 4])
    return exe.receipt.lines[0].kernel, exe.receipt.notes
