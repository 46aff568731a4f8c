"""Compiling and caching of native code: races, damage, read-only folders, and machines without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from xinheng.backends.cpu import jit
from xinheng.backends.cpu.jit import NativeUnavailable, default_cache_dir, load

pytestmark = pytest.mark.skipif(
    "CXX" not in os.environ and not any(map(shutil.which, ("g++", "clang++"))), reason="no C++ compiler on this machine"
)
FLAGS = (("-O0", "-fPIC", "-std=c++17"),)
ANSWER = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "answer.cpp").write_text(ANSWER)
    (folder / "other.cpp").write_text('#include "other.h"\n')
    (folder / "other.h").write_text("#pragma once\n")
    monkeypatch.setattr(jit, "SOURCES", folder)
    return folder


def test_an_object_is_compiled_once_and_then_found(sources: Path, tmp_path: Path) -> None:
    first = load(tmp_path / "cache", flag_sets=FLAGS)
    second = load(tmp_path / "cache", flag_sets=FLAGS)
    assert first.library.answer() == second.library.answer() == 42
    assert (first.compiled, second.compiled) == (True, False)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.path.name] == [second.path.name]
    assert first.flags == FLAGS[0] and first.compiler


def test_the_key_covers_sources_headers_and_flags(sources: Path, tmp_path: Path) -> None:
    paths = {load(tmp_path / "cache", flag_sets=FLAGS).path}
    (sources / "other.h").write_text("#pragma once\n#define OTHER 1\n")
    paths.add(load(tmp_path / "cache", flag_sets=FLAGS).path)
    paths.add(load(tmp_path / "cache", flag_sets=(("-O1", *FLAGS[0][1:]),)).path)
    (sources / "answer.cpp").write_text(ANSWER.replace("42", "43"))
    last = load(tmp_path / "cache", flag_sets=FLAGS)
    assert last.library.answer() == 43 and last.compiled
    assert len(paths | {last.path}) == 4


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "replaced"])
def test_a_damaged_object_is_compiled_again(sources: Path, tmp_path: Path, damage: str) -> None:
    path = load(tmp_path / "cache", flag_sets=FLAGS).path
    content = path.read_bytes()
    path.unlink()  # this process has it mapped
    flipped = content[:600] + bytes([content[600] ^ 1]) + content[601:]
    path.write_bytes({"truncated": content[:5000], "flipped": flipped, "empty": b"", "replaced": b"x" * 9000}[damage])
    again = load(tmp_path / "cache", flag_sets=FLAGS)
    assert again.compiled and again.library.answer() == 42
    assert not load(tmp_path / "cache", flag_sets=FLAGS).compiled


def test_two_processes_may_compile_at_once(sources: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from xinheng.backends.cpu import jit; jit.SOURCES = pathlib.Path(sys.argv[1]);"
        "made = jit.load(pathlib.Path(sys.argv[2]), flag_sets=[sys.argv[3:]]); print(made.library.answer(), made.path)"
    )
    command = [sys.executable, "-c", code, str(sources), str(tmp_path / "cache"), *FLAGS[0]]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], told
    (path,) = (tmp_path / "cache").iterdir()
    assert {out.strip() for out, _ in told} == {f"42 {path}"}
    assert not load(tmp_path / "cache", flag_sets=FLAGS).compiled


def test_without_a_writable_folder_the_object_lives_in_the_process(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    made = load(tmp_path / "file" / "cache", flag_sets=FLAGS)
    assert made.compiled and made.library.answer() == 42
    assert not made.path.exists() and not made.path.parent.exists()


def test_a_read_only_cache_is_used_as_it_is(sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    path = load(cache, flag_sets=FLAGS).path
    path.chmod(0o444)
    cache.chmod(0o555)
    try:
        made = load(cache, flag_sets=FLAGS)
    finally:
        cache.chmod(0o755)
    assert not made.compiled and made.path == path


def test_a_folder_that_everyone_can_write_to_is_not_trusted(sources: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    load(cache, flag_sets=FLAGS)
    cache.chmod(0o777)
    made = load(cache, flag_sets=FLAGS)
    assert made.compiled and made.path.parent != cache and made.library.answer() == 42


def test_a_missing_compiler_is_a_reason(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    with pytest.raises(NativeUnavailable, match="the compiler named by CXX, '/nonexistent', does not exist") as caught:
        load(tmp_path / "cache", flag_sets=FLAGS)
    assert caught.value.reason in str(caught.value)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeUnavailable, match="neither g\\+\\+ nor clang\\+\\+ is installed"):
        load(tmp_path / "cache", flag_sets=FLAGS)


def test_cxx_may_hold_arguments(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    (sources / "answer.cpp").write_text('extern "C" int answer() { return ANSWER; }\n')
    monkeypatch.setenv("CXX", f"{compiler} -DANSWER=17")
    assert load(tmp_path / "cache", flag_sets=FLAGS).library.answer() == 17


def test_sources_that_do_not_compile_are_a_reason(sources: Path, tmp_path: Path) -> None:
    (sources / "answer.cpp").write_text("this is not C++\n")
    with pytest.raises(NativeUnavailable, match=r"failed: .*answer\.cpp:1"):
        load(tmp_path / "cache", flag_sets=FLAGS)
    for source in sources.iterdir():
        source.unlink()
    with pytest.raises(NativeUnavailable, match="sources are missing"):
        load(tmp_path / "cache", flag_sets=FLAGS)


def test_flags_that_the_compiler_does_not_know_give_way_to_the_next(sources: Path, tmp_path: Path) -> None:
    made = load(tmp_path / "cache", flag_sets=(("-march=no-such-thing", *FLAGS[0]), *FLAGS))
    assert made.flags == FLAGS[0] and made.library.answer() == 42


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XINHENG_CACHE_DIR", str(tmp_path))
    assert default_cache_dir() == tmp_path / "jit"
    monkeypatch.delenv("XINHENG_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "xinheng" / "jit"
