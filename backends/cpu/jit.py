"""Compiles the C++ kernels of `csrc` with the machine's own compiler, keeps the object in a cache and loads it.

The object is one file named after a hash of sources, flags, compiler and processor; its last bytes are a checksum, so
a damaged file is noticed and compiled again instead of being mapped. Several processes may build at the same time:
each writes a file of its own and renames it into place.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xinheng.core.errors import DeviceError

SOURCES = Path(__file__).parent / "csrc"
COMMON_FLAGS = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-w",
)
FLAG_SETS = (("-march=native", *COMMON_FLAGS), COMMON_FLAGS)  # the second for compilers that do not know the processor
LINK_FLAGS = ("-shared", "-pthread", *(("-Wl,--as-needed",) if sys.platform == "linux" else ()))
MAGIC = b"xinheng-object-1"
LIGHT = {"tile_product.cpp": ("-O2",)}
"""Flags of sources whose loops are unrolled by hand: -O3 takes three times as long for the same speed."""
COMPILE_SECONDS = 300


class NativeUnavailable(DeviceError):
    """The native kernels cannot be used here; `reason` says why in a sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"native CPU kernels are unavailable: {reason}; install a C++17 compiler (g++ or clang++) or point CXX at "
            "one, or go on with the slower torch kernels"
        )
        self.reason = reason


@dataclass(frozen=True)
class NativeObject:
    """A loaded object: the library, where it came from, how it was compiled, and whether this call compiled it."""

    library: ctypes.CDLL
    path: Path
    compiler: str
    flags: tuple[str, ...]
    compiled: bool


def load(cache_dir: Path | None = None, *, flag_sets: Sequence[Sequence[str]] = FLAG_SETS) -> NativeObject:
    """Load the native kernels, compiling them when the cache has no intact object for this machine.

    `cache_dir` defaults to `$XINHENG_CACHE_DIR/jit` or `~/.cache/xinheng/jit`. If nothing can be written there, the
    object is built in a private temporary folder and lives as long as the process. `flag_sets` are tried in order.

    Raises:
        NativeUnavailable: there is no working compiler, the sources do not compile, or the object does not load.
    """
    sources = sorted(SOURCES.glob("*.cpp"))
    if not sources:
        raise NativeUnavailable(f"the sources are missing from {SOURCES}")
    command = compiler_command()
    version = _version(command)
    reason = "no compiler flags were given"
    for flags in flag_sets:
        name = f"kernels-{_key(command, version, flags)}.so"
        try:
            return _load_with(command, version, tuple(flags), sources, name, cache_dir or default_cache_dir())
        except NativeUnavailable as error:
            reason = error.reason
    raise NativeUnavailable(reason)


def default_cache_dir() -> Path:
    """`$XINHENG_CACHE_DIR/jit`, or `~/.cache/xinheng/jit`."""
    root = os.environ.get("XINHENG_CACHE_DIR")
    return (Path(root) if root else Path.home() / ".cache" / "xinheng") / "jit"


def _load_with(
    command: list[str], version: str, flags: tuple[str, ...], sources: list[Path], name: str, cache_dir: Path
) -> NativeObject:
    spelled = f"{shlex.join(command)} ({version})"
    target = cache_dir / name
    if _trusted(cache_dir) and intact(target):
        return NativeObject(open_object(target), target, spelled, flags, compiled=False)
    with tempfile.TemporaryDirectory(prefix="xinheng-jit-") as scratch:
        built = Path(scratch) / name
        _compile(command, flags, sources, built)
        if _publish(built, target):
            return NativeObject(open_object(target), target, spelled, flags, compiled=True)
        return NativeObject(
            open_object(built), built, spelled, flags, compiled=True
        )  # stays mapped when its name is gone


def compiler_command() -> list[str]:
    named = os.environ.get("CXX")
    for candidate in [named] if named else ["g++", "clang++"]:
        command = shlex.split(candidate)
        if command and shutil.which(command[0]):
            return command
    if named:
        raise NativeUnavailable(f"the compiler named by CXX, {named!r}, does not exist")
    raise NativeUnavailable("neither g++ nor clang++ is installed")


def _version(command: list[str]) -> str:
    output = _run([*command, "--version"])
    return output.splitlines()[0].strip() if output.strip() else "unknown version"


def _run(command: Sequence[str]) -> str:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"{shlex.join(command)} did not run: {error}") from error
    if result.returncode:
        message = (result.stderr or result.stdout).strip().splitlines()
        told = " | ".join(message[:3]) if message else f"exit status {result.returncode}"
        raise NativeUnavailable(f"{shlex.join(command)} failed: {told}")
    return result.stdout


def _key(command: Sequence[str], version: str, flags: Sequence[str]) -> str:
    return digest(*command, version, *flags, *LINK_FLAGS, _processor())


def digest(*texts: str) -> str:
    """A hash of the sources and of `texts`."""
    made = hashlib.sha256()
    for source in sorted(SOURCES.glob("*")):
        if source.suffix in {".cpp", ".h"}:
            made.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    for text in texts:
        made.update(text.encode() + b"\0")
    return made.hexdigest()[:32]


def compile_to(target: Path, flags: Sequence[str]) -> None:
    """Compile the sources into the object `target`, in one step.

    Raises:
        NativeUnavailable: there is no working compiler, the sources do not compile, or `target` cannot be written.
    """
    command, sources = compiler_command(), sorted(SOURCES.glob("*.cpp"))
    with tempfile.TemporaryDirectory(prefix="xinheng-jit-") as scratch:
        built = Path(scratch) / target.name
        _compile(command, flags, sources, built)
        if not _publish(built, target):
            raise NativeUnavailable(f"{target} cannot be written, or everyone can write to its folder")


def _processor() -> str:
    """What -march=native depends on: the processor's names and feature flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part", "isa")
    found = [line for line in lines if line.split(":")[0].strip() in wanted]
    return "\n".join([platform.system(), platform.machine(), platform.processor(), *found])


def _compile(command: Sequence[str], flags: Sequence[str], sources: Sequence[Path], target: Path) -> None:
    """Compile every source on its own, side by side, link them, and append the checksum."""
    objects = [target.with_name(f"{source.stem}.o") for source in sources]
    jobs = [
        [*command, *flags, *LIGHT.get(source.name, ()), "-c", str(source), "-o", str(made)]
        for source, made in sorted(zip(sources, objects, strict=True), key=lambda pair: -pair[0].stat().st_size)
    ]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)) if sys.platform == "linux" else 2) as pool:
        list(pool.map(_run, jobs))
    _run([*command, *flags, *LINK_FLAGS, *map(str, objects), "-o", str(target)])
    content = target.read_bytes()
    target.write_bytes(content + MAGIC + hashlib.sha256(content).digest())


def intact(path: Path) -> bool:
    """Whether a file is an object with the checksum that was appended to it."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    body, tail = content[: -len(MAGIC) - 32], content[-len(MAGIC) - 32 :]
    return tail == MAGIC + hashlib.sha256(body).digest()


def _trusted(folder: Path) -> bool:
    """Whether nobody but this user and root can have put files into `folder`."""
    try:
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid in {0, os.getuid()} and not status.st_mode & stat.S_IWOTH


def _publish(built: Path, target: Path) -> bool:
    """Move a copy of `built` to `target` in one step; False when the folder cannot be written or trusted."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _trusted(target.parent):
            return False
        with _temporary(target) as copy:
            shutil.copyfile(built, copy)
            copy.chmod(0o755)
            os.replace(copy, target)
    except OSError:
        return False
    return True


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    handle, name = tempfile.mkstemp(prefix=target.name, suffix=".tmp", dir=target.parent)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def open_object(path: Path) -> ctypes.CDLL:
    """Load an object; NativeUnavailable if the system refuses it."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"{path} does not load: {error}") from error
