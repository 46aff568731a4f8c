"""A required certificate is asked for where settings meet devices: for every model, and by every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xinheng.core.certificate import Certificate, Mode
from xinheng.core.errors import CertificateError
from xinheng.core.hal import Numerics
from xinheng.core.plugins import PluginManager
from xinheng.core.settings import RuntimeSettings
from xinheng.core.signature import sign
from xinheng.engine.loading import open_devices

from ..keys import make_key


def settings(tmp_path: Path, **fields: Any) -> RuntimeSettings:
    given = {"device": "cpu:0", "require_certificate": "L1", "certificates": tmp_path / "shelf"}
    return RuntimeSettings(trusted_keys=[str(tmp_path / "key.pub")], **{**given, **fields})


def issue(tmp_path: Path, key: Path, **fields: Any) -> None:
    manager = PluginManager()
    opened = manager.open("cpu:0")
    given = {"suite_version": "1.0", "level": "L1", "items": 1, "passed": 1, "debt": 0}
    about = {"device": manager.identify(opened), "mode": Mode.of(opened, Numerics())}
    made = Certificate.of(**{**given, **about, "issued": "", "report": "", **fields})
    (tmp_path / "shelf").mkdir(exist_ok=True)
    (tmp_path / "shelf" / "cpu.json").write_text(json.dumps(sign(made.document(), key)), encoding="utf-8")


def test_a_device_opens_once_it_is_certified(tmp_path: Path) -> None:
    key, _ = make_key(tmp_path)
    with pytest.raises(CertificateError, match="cpu:0"):
        open_devices(settings(tmp_path))
    issue(tmp_path, key)
    assert open_devices(settings(tmp_path)).main.spec == "cpu:0"
    with pytest.raises(CertificateError, match="L1, not L2"):
        open_devices(settings(tmp_path, require_certificate="L2"))
    with pytest.raises(CertificateError, match="numerics is 'strict', not 'fast'"):
        open_devices(settings(tmp_path, numerics="fast"))
    with pytest.raises(CertificateError, match="overrides is 'none', not 'matmul=reference'"):
        open_devices(settings(tmp_path, overrides={"matmul": "reference"}))


def test_an_emulation_is_refused_and_runs_where_nothing_is_required(tmp_path: Path) -> None:
    make_key(tmp_path)
    with pytest.raises(CertificateError, match="sim:exact is an emulation"):
        open_devices(settings(tmp_path, device="sim:exact"))
    assert open_devices(RuntimeSettings(device="sim:exact")).main.spec == "sim:exact"


def test_the_device_that_takes_over_ops_is_asked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "xinheng.engine.loading.require_certificate",
        lambda device, mode, level, runtime: asked.append((device.spec, level)),
    )
    open_devices(settings(tmp_path, device="sim:exact", fallback="cpu"))
    assert asked == [("sim:exact", "L1"), ("cpu:0", "L1")]
    asked.clear()
    open_devices(settings(tmp_path, device="sim:exact", fallback="reference"))
    assert asked == [("sim:exact", "L1")]
    open_devices(RuntimeSettings(device="sim:exact"))
    assert asked == [("sim:exact", "L1")]
