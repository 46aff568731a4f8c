"""Libraries that stand in for CANN, so that the real torch_npu can be imported on a machine without it.

They export what torch_npu's own libraries import and nothing else defines; every function does nothing and returns 0,
which is success to all of them. That is enough for schemas, Meta kernels and dispatch, and for nothing that runs.

    python stub_cann.py SITE TARGET     SITE is the folder torch_npu was installed into, TARGET gets the libraries
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

LIBRARIES = (
    "libhccl.so", "libascendcl.so", "libacl_op_compiler.so", "libge_runner.so", "libgraph.so", "libacl_tdt_channel.so",
    "libatb.so",
)  # fmt: skip
SYSTEM = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libdl.so.2", "librt.so.1", "libpthread.so.0")


def build(site: Path, target: Path) -> int:
    """Compile the libraries for the torch_npu below `site` into `target`; the number of functions they stand in for."""
    theirs = sorted(p for p in (site / "torch_npu").rglob("*.so*") if "torchair" not in p.parts)
    if not theirs:
        raise SystemExit(f"{site} holds no torch_npu")
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    torch = sorted((Path(found.origin).parent / "lib").glob("lib*.so*"))
    missing = _symbols(theirs, "--undefined-only") - _symbols([*theirs, *torch, *_system()], "--defined-only")
    names = sorted(name for name in missing if not name.startswith(("Py", "_Py", "__")))
    target.mkdir(parents=True, exist_ok=True)
    source = target / "stub.c"
    source.write_text(
        "\n".join(f'int f{i}(void) __asm__("{name}"); int f{i}(void) {{ return 0; }}' for i, name in enumerate(names)),
        encoding="utf-8",
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", str(target / LIBRARIES[0]), str(source)], check=True)
    source.write_text("", encoding="utf-8")
    for name in LIBRARIES[1:]:
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(target / name), str(source)], check=True)
    source.unlink()
    return len(names)


def _symbols(libraries: Iterable[Path], which: str) -> set[str]:
    """Names of the dynamic symbols of some libraries, without their versions."""
    command = ["nm", "--dynamic", which, "--format=posix", *map(str, libraries)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.split()[0].partition("@")[0] for line in done.stdout.splitlines() if line and not line.endswith(":")}


def _system() -> list[Path]:
    """The libraries of the system that torch_npu uses as well."""
    done = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    listed = (line.split() for line in done.stdout.splitlines() if "=>" in line)
    return [Path(words[-1]) for words in listed if words[0] in SYSTEM and "x86-64" in " ".join(words)]


if __name__ == "__main__":
    print(f"{build(Path(sys.argv[1]), Path(sys.argv[2]))} functions of CANN are stood in for")
