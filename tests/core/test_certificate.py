"""Certificates: which ones fit a device and a mode, and that a required one is asked for wherever a model is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xinheng.core.certificate import Certificate, DeviceIdentity, Mode, require_certificate
from xinheng.core.errors import CertificateError, FormatError, SettingsError
from xinheng.core.plugins import PluginManager
from xinheng.core.settings import RuntimeSettings, load_settings
from xinheng.core.signature import public_key, sign, verify

from ..keys import make_key

CHIP = DeviceIdentity(spec="acme:0", name="Acme A1", driver="24.1", plugin="xinheng-acme", plugin_version="1.2")


def certificate(device: DeviceIdentity = CHIP, level: str = "L2", **fields: Any) -> Certificate:
    given = {"mode": Mode(), "items": 100, "passed": 99, "debt": 1, "issued": "2026-11-30T00:00:00+00:00"}
    return Certificate.of(suite_version="1.0", level=level, device=device, report="sha256:0", **{**given, **fields})


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder of certificates."""
    folder = tmp_path / "certificates"
    folder.mkdir()
    return folder


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return make_key(tmp_path)


def put(shelf: Path, key: Path | None, made: Certificate, name: str = "one") -> Path:
    document = made.document() if key is None else sign(made.document(), key)
    path = shelf / f"{name}.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def runtime(shelf: Path, public: Path, **fields: Any) -> RuntimeSettings:
    return RuntimeSettings(certificates=shelf, trusted_keys=[str(public)], **fields)


# ------------------------------------------------------------------------------------------------------------ what fits
@pytest.mark.parametrize("level", ["L0", "L1", "L2"])
def test_a_certificate_covers_its_level_and_those_below(level: str) -> None:
    assert certificate().misfits(CHIP, Mode(), level) == ()


def test_another_card_of_the_same_kind_fits() -> None:
    assert certificate().misfits(CHIP.model_copy(update={"spec": "acme:3"}), Mode(), "L1") == ()


@pytest.mark.parametrize(
    ("chip", "mode", "reason"),
    [
        ({"name": "Acme A2"}, {}, "name is 'Acme A1', not 'Acme A2'"),
        ({"driver": "24.2"}, {}, "driver is '24.1', not '24.2'"),
        ({"driver": ""}, {}, "driver is '24.1', not 'none'"),
        ({"plugin": "other"}, {}, "plugin is 'xinheng-acme', not 'other'"),
        ({"plugin_version": "1.3"}, {}, "plugin version is '1.2', not '1.3'"),
        ({"spec": "acme:0@other"}, {}, "backend is 'acme', not 'acme@other'"),
        ({"spec": "acme:a1", "emulated": True}, {}, "an emulation proves nothing about silicon"),
        ({}, {"numerics": "fast"}, "numerics is 'strict', not 'fast'"),
        ({}, {"overrides": {"matmul": "reference"}}, "overrides is 'none', not 'matmul=reference'"),
        ({}, {"capture": "graph"}, "capture is 'eager', not 'graph'"),
    ],
)
def test_it_is_bound_to_device_driver_plugin_and_mode(chip: dict[str, Any], mode: dict[str, Any], reason: str) -> None:
    assert certificate().misfits(CHIP.model_copy(update=chip), Mode(**mode), "L1") == (reason,)


def test_an_emulation_proves_nothing_about_silicon_and_needs_no_other_reason() -> None:
    emulated = certificate(CHIP.model_copy(update={"emulated": True}))
    assert emulated.badge == "L2 (emulated)"
    assert emulated.misfits(CHIP, Mode(), "L0") == ("an emulation proves nothing about silicon",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "xinheng.report"}, "that of a certificate is"),
        ({"version": 2}, "certificate format 2, and this xinheng reads format 1"),
        ({"level": None}, "field 'level'"),
        ({"colour": 1}, "field 'colour'"),
    ],
)
def test_what_is_no_certificate_of_this_format_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Certificate.read({**certificate().document(), **change}, "file.json")


def test_the_digest_is_over_all_the_rest() -> None:
    document = certificate().document()
    assert verify(document) is None
    assert Certificate.read(document, "file.json").document() == document


# ------------------------------------------------------------------------------------------------------------- required
def test_the_one_that_fits_is_found_among_others(shelf: Path, keys: tuple[Path, Path]) -> None:
    private, public = keys
    put(shelf, private, certificate(level="L0"), "a")
    put(shelf, None, certificate(level="L4"), "b")
    put(shelf, private, certificate(level="L3"), "c")
    (shelf / "d.json").write_text("{", encoding="utf-8")
    assert require_certificate(CHIP, Mode(), "L1", runtime(shelf, public)).level == "L3"
    by_text = RuntimeSettings(certificates=shelf, trusted_keys=[public_key(str(public))])
    assert require_certificate(CHIP, Mode(), "L2", by_text).level == "L3"


def test_without_any_the_message_says_how_to_make_one(shelf: Path, keys: tuple[Path, Path]) -> None:
    with pytest.raises(CertificateError) as caught:
        require_certificate(CHIP, Mode(), "L1", runtime(shelf / "nowhere", keys[1]))
    told = str(caught.value)
    assert "acme:0 (Acme A1) has no certificate of level L1" in told and "there is none at all" in told
    assert "xinheng conformance run --device acme:0 --level L1 --report DIR" in told
    assert "xinheng report sign DIR --key KEY.pem --install" in told


def test_the_message_says_what_is_wrong_with_each_and_shows_the_nearest(
    shelf: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = keys
    put(shelf, private, certificate(CHIP.model_copy(update={"name": "B", "driver": "1", "plugin": "x"})), "far")
    put(shelf, private, certificate(CHIP.model_copy(update={"driver": "23.9"})), "near")
    put(shelf, None, certificate(), "unsigned")
    put(shelf, make_key(tmp_path, "stranger")[0], certificate(), "stranger")
    with pytest.raises(CertificateError) as caught:
        require_certificate(CHIP, Mode(), "L1", runtime(shelf, public))
    told = str(caught.value)
    assert "near.json: driver is '23.9', not '24.1'" in told
    assert "unsigned.json: nobody signed it" in told
    assert "none of the trusted keys" in told
    assert "far.json" not in told and "and 1 more" in told


def test_an_edited_certificate_does_not_count(shelf: Path, keys: tuple[Path, Path]) -> None:
    private, public = keys
    path = put(shelf, private, certificate(level="L0"))
    document = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**document, "level": "L4"}), encoding="utf-8")
    with pytest.raises(CertificateError, match=r"one\.json: the content does not match its digest"):
        require_certificate(CHIP, Mode(), "L1", runtime(shelf, public))


def test_an_emulated_device_is_refused_whatever_there_is(shelf: Path, keys: tuple[Path, Path]) -> None:
    private, public = keys
    emulation = DeviceIdentity(spec="sim:exact", name="x", emulated=True)
    put(shelf, private, certificate(emulation, level="L4"))
    with pytest.raises(CertificateError, match="is an emulation"):
        require_certificate(emulation, Mode(), "L0", runtime(shelf, public))


def test_a_requirement_without_a_trusted_key_is_a_mistake(shelf: Path) -> None:
    with pytest.raises(SettingsError, match=r"runtime\.trusted_keys"):
        require_certificate(CHIP, Mode(), "L1", RuntimeSettings(certificates=shelf))


def test_settings_take_levels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="require_certificate"):
        RuntimeSettings(require_certificate="L9")  # type: ignore[arg-type]
    monkeypatch.setenv("XDG_CONFIG_HOME", "/somewhere")
    loaded = load_settings([RuntimeSettings], {"runtime.require_certificate": "L1"})[RuntimeSettings]
    assert loaded.require_certificate == "L1"
    assert loaded.certificates == Path("/somewhere/xinheng/certificates")
    assert RuntimeSettings().require_certificate is None


# -------------------------------------------------------------------------------------------------- what identifies one
def test_a_device_is_identified_by_what_its_plugin_and_probe_say() -> None:
    manager = PluginManager()
    found = manager.identify(manager.open("cpu:0"))
    assert found.spec == "cpu:0" and not found.emulated
    assert found.driver.startswith("torch ") and found.plugin == "xinheng" and found.plugin_version
    assert manager.identify(manager.open("sim:exact")).emulated
