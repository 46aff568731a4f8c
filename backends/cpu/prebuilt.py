"""Objects of the kernels that were compiled beforehand for kinds of processors, for machines without a compiler.

`python -m xinheng.backends.cpu.prebuilt DIR` makes them; `scripts/build --native` puts them into a wheel. An object
carries a hash of the sources it was made from in its name, so one of another version is never loaded.
"""

from __future__ import annotations

import platform
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from . import jit
from .jit import COMMON_FLAGS, NativeObject, NativeUnavailable

FOLDER = Path(__file__).parent / "prebuilt"
V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of processor: its name, the compiler's flags for it, and the features that Linux must name for it."""

    name: str
    flags: tuple[str, ...]
    features: frozenset[str]


TARGETS: dict[str, tuple[Target, ...]] = {
    "x86_64": (
        Target(
            "x86-64-v4-vnni-bf16",
            ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
            V4 | {"avx512_vnni", "avx512_bf16"},
        ),
        Target("x86-64-v4-vnni", ("-march=x86-64-v4", "-mavx512vnni"), V4 | {"avx512_vnni"}),
        Target("x86-64-v3", ("-march=x86-64-v3",), V3),
        Target("x86-64", ("-march=x86-64",), frozenset()),
    ),
    "aarch64": (
        Target("armv8.2-a-dotprod", ("-march=armv8.2-a+dotprod",), frozenset({"asimd", "asimddp"})),
        Target("armv8-a", ("-march=armv8-a",), frozenset({"asimd"})),
    ),
}
"""By architecture, the most capable kind first."""


def supported(root: Path = Path("/")) -> list[Target]:
    """The targets that this processor runs, the most capable first; `root` is where `/proc` is looked up."""
    has = _features(root)
    return [target for target in TARGETS.get(platform.machine(), ()) if target.features <= has]


def load_prebuilt(folder: Path | None = None, root: Path = Path("/")) -> tuple[NativeObject, str]:
    """The object for this processor and the name of its target; `folder` defaults to that of the package.

    Raises:
        NativeUnavailable: there is no intact object of this version for this processor.
    """
    folder, runs = folder or FOLDER, supported(root)
    for target in runs:
        path = folder / object_name(target)
        if jit.intact(path):
            return NativeObject(jit.open_object(path), path, "prebuilt", target.flags, compiled=False), target.name
    names = ", ".join(target.name for target in runs) or f"any {platform.machine()}"
    raise NativeUnavailable(f"no prebuilt object for {names} is in {folder}")


def build(folder: Path) -> list[Path]:
    """Compile the kernels for every target of this machine's architecture into `folder`.

    Raises:
        NativeUnavailable: there is no working compiler, or it does not know a target.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("kernels-*.so"):
        old.unlink()
    made = []
    for target in TARGETS.get(platform.machine(), ()):
        made.append(folder / object_name(target))
        jit.compile_to(made[-1], (*target.flags, *COMMON_FLAGS))
    if not made:
        raise NativeUnavailable(f"there are no prebuilt targets for {platform.machine()}")
    return made


def object_name(target: Target) -> str:
    """The file of a target: its name, and a hash of sources and flags."""
    return f"kernels-{target.name}-{jit.digest(*target.flags, *COMMON_FLAGS)}.so"


def _features(root: Path) -> frozenset[str]:
    """What Linux says the first processor can do."""
    try:
        lines = (root / "proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    told = next((line for line in lines if line.split(":")[0].strip() in {"flags", "Features"}), "")
    return frozenset(told.partition(":")[2].split())


def main(arguments: list[str]) -> int:
    """`[DIR]`: build into DIR, by default where an installed package looks for its objects."""
    if len(arguments) > 1 or any(word.startswith("-") for word in arguments):
        print(f"usage: {shlex.join(['python', '-m', str(__spec__.name if __spec__ else __file__)])} [DIR]")
        return 2
    try:
        made = build(Path(arguments[0]) if arguments else FOLDER)
    except NativeUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    for path in made:
        print(f"{path} ({path.stat().st_size} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
