"""`xinheng doctor`: what is missing for each backend, in two languages, and an exit status for scripts."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from xinheng.core.hal import Finding

from .conftest import Command

BACKENDS = Path(__file__).parents[2] / "backends"


def test_every_backend_is_told_with_what_it_misses(xinheng: Command) -> None:
    done = xinheng("doctor", "--language", "en")
    assert done.status == 0
    for told in ("cpu", "cpu:0", "ascend.driver-missing", "install the driver and firmware of the card"):
        assert told in done.out


def test_findings_in_chinese_have_the_same_codes(xinheng: Command) -> None:
    english, chinese = (xinheng("doctor", "ascend", "--language", language).out for language in ("en", "zh"))
    assert "ascend.driver-missing" in english and "ascend.driver-missing" in chinese
    assert "没有设备" in chinese and "no device" not in chinese and "install the driver" not in chinese


def test_the_language_follows_the_environment(xinheng: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert "可用" in xinheng("doctor", "cpu").out
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert "available" in xinheng("doctor", "cpu").out


def test_the_exit_status_tells_whether_a_named_backend_has_a_device(xinheng: Command) -> None:
    assert xinheng("doctor", "cpu").status == 0
    assert xinheng("doctor", "cpu", "ascend").status == 1
    assert xinheng("doctor", "sim").status == 1, "an emulation is no device"


def test_machines_get_codes_and_versions(xinheng: Command) -> None:
    told = json.loads(xinheng("doctor", "ascend", "--json").out)
    assert {"numpy", "torch", "xinheng"} <= set(told["packages"])
    (record,) = told["backends"]
    assert all(finding["code"].startswith("ascend.") for finding in record["findings"])
    assert all(finding["chinese"] for finding in record["findings"])


def test_wrong_names_are_explained(xinheng: Command) -> None:
    assert "no backend plugin named 'ascent'" in xinheng("doctor", "ascent").err
    assert "--language 'fr' is not one of en, zh" in xinheng("doctor", "--language", "fr").err


def test_a_finding_without_chinese_is_told_in_english() -> None:
    assert Finding("a.b", "text", "remedy").told("zh") == ("text", "remedy")


def test_every_finding_of_this_project_has_chinese() -> None:
    found = 0
    for path in BACKENDS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
                found += 1
                assert len(node.args) + len(node.keywords) == 4, f"{path.name}:{node.lineno} speaks English only"
    assert found >= 5
