"""Plugins of every broken kind, installed as real distributions: all are reported and none is fatal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xinheng.core.errors import DeviceError, PluginError, XinhengError
from xinheng.core.hal import API_VERSION, DeviceOptions
from xinheng.core.plugins import PluginManager, PluginRecord

GROUP = "xinheng_test.backends"

BACKEND = """
from xinheng.core.errors import DeviceError
from xinheng.core.hal.backend import Backend, DeviceInfo, Finding
from xinheng.core.hal.device import Device

class FakeDevice(Device):
    def __init__(self, spec):
        self.spec = str(spec)
    upload = download = prepare = allocate_state = shape = memory = None

class Fake(Backend):
    priority = {priority}
    api_version = {version}
    def probe(self):
        {probe}
    def open(self, spec, options=None):
        {open}
    def diagnose(self):
        return [Finding("driver", "libacme.so is missing", "install the driver")]
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution with one entry point on the path."""
    before = set(sys.modules)

    def make(
        name: str,
        code: str | None = None,
        *,
        distribution: str | None = None,
        priority: int = 50,
        version: str = str(API_VERSION),
        probe: str | None = None,
        open: str = "return FakeDevice(spec)",
    ) -> None:
        distribution = distribution or f"xinheng-{name}"
        module = distribution.replace("-", "_")
        folder = tmp_path / distribution
        metadata = folder / f"{module}-1.2.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {module}:Fake\n")
        probe = probe or f'return [DeviceInfo("{name}:0", "a card")]'
        text = BACKEND.format(priority=priority, version=version, probe=probe, open=open) if code is None else code
        (folder / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(str(folder))

    yield make
    for name in set(sys.modules) - before:
        if name.startswith("xinheng_") and "." not in name:
            del sys.modules[name]


def manager(*disabled: str) -> PluginManager:
    return PluginManager(disabled, group=GROUP)


def by_name(plugins: PluginManager) -> dict[str, PluginRecord]:
    return {record.name: record for record in plugins.records()}


def test_names_are_listed_without_importing(install: Install) -> None:
    install("acme", "raise SystemExit('imported')")
    (record,) = manager().records(probe=False)
    assert (record.name, record.distribution, record.version) == ("acme", "xinheng-acme", "1.2")
    assert (record.status, record.error) == ("installed", None)
    assert "xinheng_acme" not in sys.modules


def test_only_what_is_asked_for_is_imported(install: Install) -> None:
    install("acme")
    install("other")
    assert manager().open("acme:0").spec == "acme:0"
    assert "xinheng_acme" in sys.modules
    assert "xinheng_other" not in sys.modules


BROKEN: dict[str, tuple[dict[str, str], str, str]] = {
    "raises": ({"code": "import missing_sdk"}, "failed", "ModuleNotFoundError: No module named 'missing_sdk'"),
    "asserts": ({"code": "assert False, 'no licence'"}, "failed", "AssertionError: no licence"),
    "exits": ({"code": "import sys; sys.exit('no driver')"}, "failed", "SystemExit: no driver"),
    "absent": ({"code": "Other = 1"}, "failed", "no attribute 'Fake'"),
    "wrong": ({"code": "Fake = 'text'"}, "failed", "xinheng_wrong:Fake is no subclass of xinheng.core.hal.Backend"),
    "abstract": (
        {"code": "from xinheng.core.hal.backend import Backend\nclass Fake(Backend): api_version = (1, 0)"},
        "failed",
        "TypeError: Can't instantiate abstract class",
    ),
    "unversioned": (
        {"code": "from xinheng.core.hal.backend import Backend\nclass Fake(Backend): pass"},
        "failed",
        "it declares no api_version",
    ),
    "future": ({"version": "(99, 0)"}, "incompatible", "it speaks version 99.0 of the backend contract"),
    "odd": ({"version": "'new'"}, "failed", "api_version is 'new'"),
    "probing": ({"probe": "raise RuntimeError('bus error')"}, "failed", "probing raised RuntimeError: bus error"),
    "quitting": ({"probe": "raise SystemExit(3)"}, "failed", "probing raised SystemExit: 3"),
    "lying": ({"probe": "return ['lying:0']"}, "failed", "probe returned str where a DeviceInfo belongs"),
    "empty": ({"probe": "return []"}, "no device", "libacme.so is missing; install the driver"),
}


def test_every_broken_kind_is_reported_and_none_is_fatal(install: Install) -> None:
    for name, (how, _, _) in BROKEN.items():
        install(name, **how)
    install("good")
    records = by_name(manager())
    for name, (_, status, words) in BROKEN.items():
        assert (records[name].status, records[name].devices) == (status, ()), records[name]
        assert words in str(records[name].error)
    assert (records["good"].status, records["good"].error) == ("available", None)
    assert [device.spec for device in records["good"].devices] == ["good:0"]


@pytest.mark.parametrize("name", BROKEN)
def test_asked_for_by_name_a_broken_plugin_is_a_loud_error(install: Install, name: str) -> None:
    how, status, words = BROKEN[name]
    install(name, **how)
    with pytest.raises(DeviceError if status == "no device" else PluginError) as caught:
        manager().open(f"{name}:0")
    assert words in str(caught.value)
    assert repr(name) in str(caught.value)


def test_auto_passes_broken_plugins_over(install: Install) -> None:
    for name, (how, _, _) in BROKEN.items():
        install(name, **how)
    install("unopened", priority=90, open="raise DeviceError('held by another process')")
    install("slow", priority=0)
    install("fast", priority=60)
    plugins = manager()
    assert plugins.open("auto").spec == "fast:0"
    assert "held by another process" in str(by_name(plugins)["unopened"].error)


def test_auto_probes_no_further_than_it_must(install: Install) -> None:
    install("fast", priority=60)
    install("slow", priority=0, probe="raise SystemExit('probed')")
    plugins = manager()
    assert plugins.open("auto").spec == "fast:0"
    assert {record.name: record.status for record in plugins.records(probe=False)}["slow"] == "installed"


def test_auto_never_picks_an_emulation(install: Install) -> None:
    install("acme", priority=60, probe='return [DeviceInfo("acme:word", "not real", emulated=True)]')
    install("empty", probe="return []")
    with pytest.raises(DeviceError, match="acme: emulations only; empty: libacme"):
        manager().open("auto")
    assert manager().open("acme:word").spec == "acme:word"


def test_two_distributions_with_one_name_are_both_named(install: Install) -> None:
    install("acme", distribution="xinheng-acme")
    install("acme", distribution="acme-official")
    (record,) = manager().records()
    assert record.status == "failed"
    assert "xinheng-acme 1.2" in str(record.error) and "acme-official 1.2" in str(record.error)
    assert "xinheng_acme" not in sys.modules and "acme_official" not in sys.modules
    with pytest.raises(PluginError, match="both register this name; uninstall one of them"):
        manager().open("acme:0")


def test_a_disabled_plugin_is_listed_but_not_imported(install: Install) -> None:
    install("acme")
    plugins = manager("acme")
    assert [record.status for record in plugins.records()] == ["disabled"]
    with pytest.raises(PluginError, match=r"disabled: setting runtime\.plugins_disabled"):
        plugins.open("acme:0")
    with pytest.raises(DeviceError, match="no device found"):
        plugins.open("auto")
    assert "xinheng_acme" not in sys.modules


def test_the_name_auto_is_reserved(install: Install) -> None:
    install("auto")
    (record,) = manager().records()
    assert (record.status, record.error) == ("failed", "the name 'auto' is reserved")


def test_a_plugin_for_a_higher_minor_version_is_fine(install: Install) -> None:
    install("acme", version=f"({API_VERSION[0]}, {API_VERSION[1] + 7})")
    assert by_name(manager())["acme"].status == "available"


def test_opening_that_fails_in_a_strange_way_is_a_plugin_error(install: Install) -> None:
    install("acme", open="return 7")
    install("exits", open="raise SystemExit(1)")
    install("polite", open="raise DeviceError('card 0 is held by process 12')")
    with pytest.raises(PluginError, match="'acme' failed to open 'acme:0': TypeError: open returned int"):
        manager().open("acme:0")
    with pytest.raises(PluginError, match="'exits' failed to open 'exits:0': SystemExit: 1"):
        manager().open("exits:0")
    with pytest.raises(DeviceError, match="card 0 is held by process 12"):
        manager().open("polite:0")


def test_options_reach_the_backend(install: Install) -> None:
    install("acme", open="raise DeviceError(f'{options.threads} threads are too many')")
    for spec in ("acme:0", "auto"):
        with pytest.raises(DeviceError, match="7 threads are too many"):
            manager().open(spec, DeviceOptions(threads=7))


def test_an_interrupt_by_the_user_goes_through(install: Install) -> None:
    install("acme", probe="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        manager().records()


def test_an_unknown_name_lists_what_is_installed(install: Install) -> None:
    install("acme")
    with pytest.raises(PluginError, match=r"no backend plugin named 'acm' is installed \(installed: acme\).*'acme'"):
        manager().open("acm:0")
    with pytest.raises(PluginError, match="installed: none"):
        PluginManager(group="xinheng_test.nothing").open("acme:0")


def test_a_plugin_may_answer_to_further_names(install: Install) -> None:
    install("acme", open="return FakeDevice(spec)")
    found = manager()
    found.backend("acme").names = lambda: ("acme", "acme-pro")  # type: ignore[method-assign]
    assert found.open("acme-pro:0").spec == "acme-pro:0"
    opened = found.open("acme-pro:0")
    opened.name = "Acme"
    assert found.identify(opened).plugin == "xinheng-acme"
    with pytest.raises(PluginError, match=r"'acme-prr'.*'acme-pro'"):
        found.open("acme-prr:0")


def test_the_backends_of_this_package_are_found() -> None:
    records = {record.name: record for record in PluginManager().records(probe=False)}
    assert {"cpu", "sim"} <= records.keys()
    assert records["cpu"].distribution == "xinheng"


def test_importing_the_manager_imports_no_framework() -> None:
    code = "import sys, xinheng.core.plugins; print({'torch', 'mindspore', 'onnx'} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_a_bad_device_name_is_refused() -> None:
    with pytest.raises(XinhengError, match="not of the form"):
        manager().open("Acme 0")
