"""The kernels without Python: csrc_check compares them with plain loops, for several targets and under sanitizers.

Every build takes some half a minute of two cores, so they wait to be asked for: `make native-check` runs them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from xinheng.backends.cpu.jit import SOURCES
from xinheng.backends.cpu.prebuilt import TARGETS, Target, supported
from xinheng.backends.cpu.program import CODES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("XINHENG_NATIVE_CHECKS" not in os.environ, reason="compiles for minutes; see make native-check"),
]
CHECKS = Path(__file__).parent / "csrc_check"
FLAGS = ("-std=c++17", "-pthread", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-w")
ARM = "aarch64-linux-gnu"
SANITIZERS = {
    "TSAN_OPTIONS": "halt_on_error=1",
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def checked(folder: Path, compiler: str, *flags: str, run: tuple[str, ...] = ()) -> None:
    """Build the checks with `flags` and run them, behind the command `run` if one is given."""
    (folder / "codes_of_commands.h").write_text(f"enum Code : int {{ {', '.join(CODES)} }};\n")
    sources = [*SOURCES.glob("*.cpp"), *CHECKS.glob("*.cpp")]
    objects = [folder / f"{source.stem}.o" for source in sources]
    assert len(set(objects)) == len(sources)
    included = [f"-I{path}" for path in (SOURCES, CHECKS, folder)]
    commands = [
        [compiler, *FLAGS, *flags, *included, "-c", str(source), "-o", str(made)]
        for source, made in zip(sources, objects, strict=True)
    ]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(finished, commands))
    finished([compiler, *FLAGS, *flags, *map(str, objects), "-o", str(folder / "check")])
    assert re.search(r"^[1-9]\d* checks, 0 failures$", finished([*run, str(folder / "check")]), re.MULTILINE)


def finished(command: list[str]) -> str:
    """The output of a command that must succeed."""
    made = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, **SANITIZERS})
    assert made.returncode == 0, f"{command[0]} ... {command[-1]}: {made.stdout[-2000:]}{made.stderr[-6000:]}"
    return made.stdout


def needs(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} missing on this machine")


@pytest.mark.parametrize("name", ["native", *(target.name for target in TARGETS["x86_64"])])
def test_the_kernels_of_a_target_compute_what_they_should(tmp_path: Path, name: str) -> None:
    needs("g++")
    flags = {target.name: target.flags for target in supported()} | {"native": ("-march=native",)}
    if name not in flags:
        pytest.skip(f"this processor does not run {name}")
    checked(tmp_path, "g++", "-O2", *flags[name])


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizer: str) -> None:
    needs("g++")
    checked(tmp_path, "g++", "-O1", "-g", "-march=native", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")


@pytest.mark.parametrize("target", TARGETS["aarch64"], ids=lambda target: target.name)
def test_the_kernels_of_arm_processors_compute_what_they_should(tmp_path: Path, target: Target) -> None:
    """On an emulated processor, which tells nothing of speed."""
    needs(f"{ARM}-g++", "qemu-aarch64")
    emulator = ("qemu-aarch64", "-L", f"/usr/{ARM}")
    checked(tmp_path, f"{ARM}-g++", "-O2", *target.flags, "-DEMULATED", run=emulator)
