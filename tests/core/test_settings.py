"""Precedence, provenance and the refusal of everything unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import pytest
from pydantic import Field

from xinheng.core.errors import SettingsError
from xinheng.core.settings import (
    RuntimeSettings,
    Settings,
    config_file,
    load_settings,
    origins,
    settings_table,
    variable,
)


class KitchenSettings(Settings):
    table: ClassVar[str] = "kitchen"

    cooks: Annotated[int, Field(ge=1, description="people | at the stove")] = 2
    soups: list[str] = Field(default_factory=list, description="on the card")
    open: bool = False
    name: str = "home"


CLASSES = (RuntimeSettings, KitchenSettings)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("XINHENG_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "xinheng.toml") -> Path:
    path = Path(name).absolute()
    path.write_text(text, encoding="utf-8")
    return path


def test_precedence_and_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    path = write('[kitchen]\ncooks = 3\nsoups = ["pho"]\nname = "file"\n')
    assert KitchenSettings().cooks == 3
    monkeypatch.setenv("XINHENG_KITCHEN__COOKS", "4")
    monkeypatch.setenv("XINHENG_KITCHEN__NAME", "env")
    assert KitchenSettings().cooks == 4
    settings = load_settings(CLASSES, {"kitchen.cooks": "5"})[KitchenSettings]
    assert (settings.cooks, settings.soups, settings.open, settings.name) == (5, ["pho"], False, "env")
    assert origins(settings) == {
        "cooks": "argument",
        "soups": f"xinheng.toml ({path})",
        "open": "default",
        "name": "environment XINHENG_KITCHEN__NAME",
    }


def test_defaults_need_no_file() -> None:
    settings = RuntimeSettings()
    assert (settings.device, settings.fallback, settings.numerics, settings.threads) == (
        "auto",
        "error",
        "strict",
        None,
    )
    assert set(origins(settings).values()) == {"default"}


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        setattr(RuntimeSettings(), "device", "cpu")  # noqa: B010


def test_text_is_read_as_toml_where_the_field_accepts_it() -> None:
    settings = load_settings(
        CLASSES,
        {
            "kitchen.soups": '["pho", "borscht"]',
            "kitchen.open": "true",
            "kitchen.name": "7",
            "runtime.device": "sim:exact",
        },
    )
    assert settings[KitchenSettings].soups == ["pho", "borscht"]
    assert settings[KitchenSettings].open is True
    assert settings[KitchenSettings].name == "7"
    assert settings[RuntimeSettings].device == "sim:exact"
    assert load_settings(CLASSES, {"kitchen.name": '"quoted"'})[KitchenSettings].name == "quoted"


def test_inner_tables_are_merged_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    write('[runtime.overrides]\nrms_norm = "reference"\nlinear = "reference"\n')
    monkeypatch.setenv("XINHENG_RUNTIME__OVERRIDES__LINEAR", "@fast")
    settings = load_settings(CLASSES, {"runtime.overrides.softmax": "decompose"})[RuntimeSettings]
    assert settings.overrides == {"rms_norm": "reference", "linear": "@fast", "softmax": "decompose"}


def test_the_file_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("[kitchen]\ncooks = 9\n", "other.toml")
    monkeypatch.setenv("XINHENG_CONFIG", str(path))
    assert config_file() == path
    assert load_settings(CLASSES)[KitchenSettings].cooks == 9
    monkeypatch.setenv("XINHENG_CONFIG", "absent.toml")
    with pytest.raises(SettingsError, match=r"XINHENG_CONFIG names 'absent\.toml'"):
        load_settings(CLASSES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[kitchn]\ncooks = 1\n", ["xinheng.toml", "unknown table [kitchn]", "'kitchen'"]),
        ("[kitchen]\ncoks = 1\n", ["xinheng.toml", "'coks'", "[kitchen]", "did you mean 'cooks'"]),
        ("[kitchen]\nzzz = 1\n", ["'zzz'", "known: cooks, soups, open, name"]),
        ("kitchen = 1\n", ["xinheng.toml", "must be a table"]),
        ("[kitchen\n", ["xinheng.toml", "no valid TOML", "line 1"]),
        ("[kitchen]\ncooks = 0\n", ["kitchen.cooks = 0", "xinheng.toml", "greater than or equal to 1"]),
        ('[runtime]\nfallback = "gpu"\n', ["runtime.fallback = 'gpu'", "'error', 'cpu' or 'reference'"]),
        ('[runtime.overrides]\nlinear = "slow"\n', ["runtime.overrides.linear = 'slow'", "'@kernel-name'"]),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, words: list[str]) -> None:
    write(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(CLASSES)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("XINHENG_KITCHEN__COKS", "1", ["XINHENG_KITCHEN__COKS", "did you mean 'XINHENG_KITCHEN__COOKS'"]),
        ("XINHENG_KITCHN__COOKS", "1", ["XINHENG_KITCHN__COOKS", "'XINHENG_KITCHEN__COOKS'"]),
        ("XINHENG_DEVICE", "cpu", ["XINHENG_DEVICE", "'XINHENG_RUNTIME__DEVICE'"]),
        ("XINHENG_KITCHEN__COOKS", "many", ["kitchen.cooks = 'many'", "environment XINHENG_KITCHEN__COOKS", "integer"]),
        ("XINHENG_KITCHEN__SOUPS", "[1]", ["kitchen.soups.0 = 1", "XINHENG_KITCHEN__SOUPS", "string"]),
    ],
)
def test_a_wrong_variable_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: list[str]) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings(CLASSES)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("kitchen.coks", "1", ["--set kitchen.coks", "did you mean 'kitchen.cooks'"]),
        ("kitchn.cooks", "1", ["--set kitchn.cooks", "did you mean 'kitchen.cooks'"]),
        ("cooks", "1", ["--set cooks", "kitchen.cooks"]),
        ("kitchen.cooks", "none", ["kitchen.cooks = 'none' (argument)", "integer"]),
        ("kitchen.cooks.left", "1", ["kitchen.cooks", "integer"]),
    ],
)
def test_a_wrong_assignment_is_refused(key: str, value: str, words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(CLASSES, {key: value})
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_wrong_argument_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"kitchen\.coks: no such setting, did you mean 'cooks'"):
        KitchenSettings(coks=1)  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match=r"kitchen\.cooks = 0 \(argument\)"):
        KitchenSettings(cooks=0)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert RuntimeSettings().cache_dir == Path("/somewhere/xinheng")
    assert RuntimeSettings(cache_dir=Path("~/mine")).cache_dir == Path.home() / "mine"


def test_the_documented_table_lists_every_field() -> None:
    table = settings_table(CLASSES)
    for cls in CLASSES:
        for field in cls.model_fields:
            assert f"| `{cls.table}.{field}` |" in table
            assert f"`{variable(cls, field)}`" in table
    assert r"people \| at the stove" in table
    assert str(Path.home()) not in table
    assert all(row.count(" | ") == 4 for row in table.splitlines() if row.startswith("| `runtime"))


def test_every_runtime_setting_is_described() -> None:
    assert [name for name, field in RuntimeSettings.model_fields.items() if not field.description] == []
