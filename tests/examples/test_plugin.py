"""`examples/plugin` is a whole backend: installed as its users do, it runs models with a fallback for what it lacks."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path

import pytest

from xinheng.core.errors import UnsupportedOp

from .conftest import LITTER, ROOT, Install, Run, on_path
from .models import by_op, greedy_ids

SOURCE = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def site(install: Install) -> Path:
    return install(SOURCE)


def test_it_is_found_by_its_entry_point(site: Path, run: Run) -> None:
    records = {
        record["name"]: record for record in json.loads(run("-m", "xinheng", "devices", "--json", sites=(site,)))
    }
    acme = records["acme"]
    assert (acme["distribution"], acme["version"], acme["status"]) == ("xinheng-acme", "0.1.0", "available")
    assert [device["spec"] for device in acme["devices"]] == ["acme:0"]
    assert "acme" not in {record["name"] for record in json.loads(run("-m", "xinheng", "devices", "--json"))}


def test_a_model_runs_on_it_with_the_cpu_for_what_it_lacks(site: Path, tiny_llama: Path) -> None:
    want, _ = greedy_ids(tiny_llama, "cpu:0")
    with on_path(site):
        got, receipt = greedy_ids(tiny_llama, "acme:0", fallback="cpu")
        with pytest.raises(
            UnsupportedOp, match=r"acme:0 cannot run \w+ on .*; set runtime\.fallback to cpu or reference"
        ):
            greedy_ids(tiny_llama, "acme:0")
    assert got == want
    ran = by_op(receipt)
    own = {op: kernel for op, (kernel, where) in ran.items() if where == "acme:0"}
    assert own == {op: f"acme_{op}" for op in own}
    assert {"linear", "rms_norm", "silu_and_mul", "sin", "concat"} <= own.keys()
    assert ran.keys() - own.keys() == {"write_cache", "paged_attention"}
    assert {where for op, (_, where) in ran.items() if op not in own} == {"cpu:0"}
    assert {(crossing.source, crossing.target) for crossing in receipt.crossings} == {
        ("acme:0", "cpu:0"),
        ("cpu:0", "acme:0"),
    }
    assert all(crossing.nbytes for crossing in receipt.crossings)
    assert {entry.layout for entry in receipt.layouts} == {"expanded to float32"}


def test_explain_tells_what_to_do_next(site: Path, run: Run, tiny_llama: Path) -> None:
    told = run(
        "-m", "xinheng", "explain", tiny_llama, "--device", "acme", "--set", "runtime.fallback=cpu", sites=(site,)
    )
    rows = {line.split()[0]: line for line in told.splitlines() if line and line[0].isalpha()}
    assert "acme_linear" in rows["linear"]
    assert "cpu:0 (moved)" in rows["paged_attention"]
    assert "tensors cross from acme:0 to cpu:0 in each run, at most " in told


def test_its_own_tests_pass(site: Path, run: Run, tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "plugin", ignore=LITTER)
    told = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", sites=(site,), folder=tmp_path / "plugin")
    passed, skipped = re.findall(r"(\d+) passed, (\d+) skipped in", told)[0]
    assert int(passed) > 1200  # level L0
    assert int(skipped) > 2000  # what is in dtypes that the card lacks


def test_it_keeps_the_contract(site: Path, run: Run) -> None:
    told = json.loads(run("-m", "xinheng", "plugin", "check", "acme", "--json", sites=(site,)))
    assert told["errors"] == 0
    assert {symptom["code"] for symptom in told["symptoms"]} == {"level.ops"}
    assert told["figures"]["covered_L0"] == "44/44"
    assert told["figures"]["cases_passed"] > 90


def test_it_is_as_short_as_promised() -> None:
    module = (SOURCE / "src" / "xinheng_acme" / "__init__.py").read_text(encoding="utf-8")
    assert len(module.splitlines()) <= 100


def test_it_uses_nothing_but_what_plugins_may() -> None:
    allowed = {
        "__future__",
        "collections",
        "dataclasses",
        "importlib",
        "numpy",
        "onnxruntime",
        "time",
        "typing",
        "xinheng",
    }
    for path in (ROOT / "examples").glob("*/src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                names = [node.module]
            for name in names:
                assert name.split(".")[0] in allowed, path
                assert not name.startswith("xinheng.") or name.split(".")[1] == "core", path
