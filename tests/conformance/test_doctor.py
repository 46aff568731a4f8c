"""The doctor of plugins names what breaks the contract, each by its code, and survives what a plugin does to it."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from xinheng.conformance.doctor import Checkup, Severity, check

from ..examples.conftest import ROOT, plain_environment

EXAMPLE = ROOT / "examples" / "plugin" / "src" / "xinheng_acme"
GOOD = """
from xinheng.core import Backend, DeviceInfo
class Plugin(Backend):
    name, api_version = "{name}", (1, 0)
    def probe(self): return [DeviceInfo("{name}:0", "a card")]
    def open(self, spec, options=None): {opens}
"""
RUDE = """
import os, tempfile, threading, time
import tensorflow
print("hello")
os.environ["RUDE"] = "1"
os.chdir(tempfile.gettempdir())
threading.Thread(target=time.sleep, args=(2,), daemon=True, name="rude").start()
""" + GOOD.replace('"{name}:0"', 'f"other:{{len(os.environ) + time.time_ns()}}"')
SOON = (datetime.now(UTC).date() + timedelta(days=3)).isoformat()
LEDGER = f"""
[[expectation]]
id = "matmul/f32/3x5,5x7/normal/0"
owner = "somebody"
class = "bug"
issue = "17"
expires = 2001-01-01

[[expectation]]
id = "matmul/f32/nonsense/normal/0"
owner = "somebody"
class = "bug"
issue = "17"
expires = 2999-01-01

[[expectation]]
id = "neg/f32/3x5/normal/0"
owner = "somebody"
class = "bug"
issue = "17"
expires = {SOON}
"""


def install(folder: Path, name: str, code: str) -> Path:
    """A distribution of one module that registers `name`."""
    module = f"xinheng_{name}"
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: xinheng-{name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[xinheng.backends]\n{name} = {module}:Plugin\n")
    (metadata / "RECORD").write_text(f"{module}.py,,\n")
    (folder / f"{module}.py").write_text(code)
    return folder


@pytest.fixture
def examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examined:
    return Examined(tmp_path, monkeypatch)


class Examined:
    """Installs a plugin and has it examined."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        patch.syspath_prepend(str(folder))
        for key, value in plain_environment(folder).items():
            patch.setenv(key, value)

    def __call__(self, name: str, code: str, patience: float = 60.0) -> Checkup:
        install(self.folder, name, code)
        return check(name, patience=patience)


def codes(checkup: Checkup, severity: Severity | None = None) -> set[str]:
    return {s.code for s in checkup.symptoms if severity in (None, s.severity)}


def test_a_plugin_that_is_not_there() -> None:
    made = check("nonsense")
    assert codes(made) == {"plugin.missing"} and made.errors == 1
    assert "installed: ascend, cambricon, cpu, cuda, generic, sim" in made.symptoms[0].text


def test_what_importing_and_probing_must_not_do(examined: Examined) -> None:
    (examined.folder / "tensorflow.py").write_text("")
    made = examined("rude", RUDE.format(name="rude", opens="raise OSError('no')"))
    assert codes(made, Severity.ERROR) >= {
        *("import.framework", "import.thread", "import.folder", "probe.unstable", "probe.spec"),
    }
    assert codes(made, Severity.WARNING) >= {"import.environment", "import.output"}
    texts = " ".join(s.text for s in made.symptoms)
    assert "imports tensorflow" in texts and "prints: hello" in texts and "changes RUDE" in texts
    assert all(s.remedy for s in made.symptoms if s.severity is not Severity.NOTE)


@pytest.mark.parametrize(
    ("code", "found", "text"),
    [
        ("import no_such_sdk", "plugin.broken", "No module named 'no_such_sdk'"),
        ("import sys; sys.exit('no licence')", "plugin.broken", "SystemExit: no licence"),
        ("class Plugin: pass", "plugin.contract", "is no subclass of xinheng.core.hal.Backend"),
        (GOOD.replace("(1, 0)", "(7, 2)"), "plugin.contract", "speaks version 7.2 of the backend contract"),
        (GOOD.replace("return [", "1 / 0; return ["), "probe.raises", "ZeroDivisionError"),
        (GOOD.replace("[DeviceInfo", "{DeviceInfo").replace(")]", ")}"), "probe.type", "probe returns"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "loading.crash", "signal 11"),
    ],
    ids=["missing", "exits", "no-backend", "version", "probe-raises", "probe-type", "crashes"],
)
def test_what_keeps_a_plugin_from_being_used(examined: Examined, code: str, found: str, text: str) -> None:
    made = examined("odd", code.replace("{name}", "odd").replace("{opens}", "pass"))
    assert codes(made, Severity.ERROR) == {found}
    assert text in made.symptoms[0].text and made.symptoms[0].remedy


@pytest.mark.parametrize(
    ("opens", "found"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", {"handling.crash"}),
        ("import time; time.sleep(60)", {"handling.hang"}),
        ("from xinheng.core.errors import DeviceError; raise DeviceError('no card')", {"device.open"}),
    ],
    ids=["crashes", "hangs", "refuses"],
)
def test_what_opening_may_do(examined: Examined, opens: str, found: set[str]) -> None:
    made = examined("odd", GOOD.format(name="odd", opens=opens), patience=5.0)
    assert codes(made, Severity.ERROR) == found


def test_two_plugins_of_one_name(examined: Examined) -> None:
    install(examined.folder, "cpu", "")
    made = check("cpu")
    assert codes(made) == {"plugin.clash"} and "both register this name" in made.symptoms[0].text


SLOPPY = {
    'self.spec, self.name, self.kernels = "acme:0"': 'self.spec, self.name, self.kernels = "acme:1"',
    "            arithmetic=Arithmetic(depth=ANY_ORDER),\n": "",
    "MemoryStats(MEMORY, MEMORY)": "MemoryStats(MEMORY, 2 * MEMORY)",
    "return buffer.data.copy()": "return buffer.data + 0",
    "        if spec.ordinals not in ((), (0,)) or spec.word or spec.runtime:\n": "        if int(spec.word or 0):\n",
    '        raise DeviceError(f"{self.spec} has no attention': '        return Card(np.zeros(1))\n        (f"',
}
WRONG = """

@KERNELS.register(ops.write_cache, name="acme_write")
def write_cache(cache, k, v, slots):
    return cache


@KERNELS.register(ops.gelu, name="acme_gelu", dtypes=[dtype("float16")])
def gelu(x, *, approximate="tanh"):
    return x


@KERNELS.register(ops.softmax, name="acme_softmax", dtypes=FLOAT32)
def softmax(x, *, axis=-1):
    return Card(x.data)
"""


def test_a_sloppy_device(examined: Examined) -> None:
    package = examined.folder / "xinheng_sloppy"
    package.mkdir()
    device = (EXAMPLE / "__init__.py").read_text(encoding="utf-8")
    for right, wrong in SLOPPY.items():
        assert device.count(right) == 1, right
        device = device.replace(right, wrong)
    (package / "__init__.py").write_text(device.replace("acme", "sloppy") + "\n\nPlugin = AcmeBackend\n")
    kernels = (EXAMPLE / "kernels.py").read_text(encoding="utf-8")
    head = "def matmul(a: Card, b: Card) -> Card:\n"
    alone = "    import threading\n    assert threading.current_thread() is threading.main_thread()\n"
    (package / "kernels.py").write_text(kernels.replace(head, head + alone) + WRONG)
    (package / "expectations.toml").write_text(LEDGER)
    install(examined.folder, "sloppy", "")
    (examined.folder / "xinheng_sloppy.py").unlink()
    made = check("sloppy")
    assert made.device == "sloppy:0"
    assert codes(made, Severity.ERROR) == {
        *("device.spec", "device.memory", "device.copy", "error.missing", "error.untyped", "state.unreadable"),
        *("thread.other", "kernel.wrong", "ledger.expired", "ledger.unknown"),
    }
    assert codes(made, Severity.WARNING) == {"device.arithmetic", "kernel.dtype", "kernel.default", "ledger.expiring"}
    found = [s for s in made.symptoms if s.code == "kernel.wrong"]
    assert any(s.text.startswith("softmax/f32/") and "conformance case softmax/f32/" in s.remedy for s in found)


def test_the_command_prints_and_exits(tmp_path: Path) -> None:
    install(tmp_path, "odd", "import no_such_sdk")
    command = [sys.executable, "-m", "xinheng", "plugin", "check", "odd"]
    environment = plain_environment(tmp_path)
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode == 1 and "odd of xinheng-odd 1.0" in told.stdout and "1 error" in told.stdout
    told = subprocess.run(
        [*command, "--json"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    data = json.loads(told.stdout)
    assert told.returncode == 1 and data["errors"] == 1
    assert data["symptoms"][0]["code"] == "plugin.broken" and data["distribution"] == "xinheng-odd"


def test_the_simulation_keeps_the_contract() -> None:
    made = check("sim", "sim:exact")
    assert codes(made, Severity.ERROR) == set()
    assert made.figures["covered_L3"] == "14/14" and made.figures["cases_passed"] > 300
