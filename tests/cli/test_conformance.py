"""The commands of `xinheng conformance` that run, list, replay and merge."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from .conftest import Command

SMALL = ("--op", "floor,logical_not", "--suite", "ops")
SIM = ("--device", "sim:exact")
RUN = ("conformance", "run", "--workers", "1")


def test_a_run_writes_a_report_and_tells_what_came_of_it(xinheng: Command, tmp_path: Path) -> None:
    made = xinheng(*RUN, *SIM, *SMALL, "--report", tmp_path / "out")
    assert made.status == 0, made.err
    assert "items pass" in made.out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {outcome["verdict"] for outcome in report["outcomes"]} == {"pass"}
    assert {outcome["op"] for outcome in report["outcomes"]} == {"floor", "logical_not"}
    assert (tmp_path / "out" / "report.html").exists()


def test_json(xinheng: Command) -> None:
    made = xinheng(*RUN, *SIM, *SMALL, "--dtype", "bool", "--json")
    told = json.loads(made.out)
    assert made.status == 0 and told["passed"] and told["failures"] == [] and told["problems"] == []
    assert told["figures"]["verdicts"] == {"pass": told["figures"]["total"]}
    assert told["scope"]["ops"] == ["floor", "logical_not"]


def test_a_failure_comes_with_the_command_that_shows_it_again(xinheng: Command) -> None:
    made = xinheng(*RUN, "--device", "sim:saturating", "--op", "exp", "--suite", "ops")
    assert made.status == 1
    assert "x exp float16: fail " in made.out
    command = re.search(r"^  (xinheng conformance case .*)$", made.out, re.MULTILINE)
    assert command is not None
    again = xinheng(*shlex.split(command[1])[1:])
    assert again.status == 1
    assert "wrong" in again.out and "verdict" in again.out and "65504" in again.out


def test_a_case_shows_operands_and_its_worst_elements(xinheng: Command) -> None:
    made = xinheng("conformance", "case", "softmax/f16/4x3x5_axis=1/normal/0", *SIM)
    assert made.status == 0
    for word in ("operand", "float16[4, 3, 5]", "axis", "expected", "at least", "reference", "D1, D3, D4"):
        assert word in made.out, word
    told = json.loads(
        xinheng("conformance", "case", "softmax/f16/4x3x5_axis=1/normal/0", *SIM, "--repeat", 2, "--json").out
    )
    assert told["outcome"]["verdict"] == "pass" and len(told["results"]["result 0"]) == 8
    other = xinheng("conformance", "case", "supports/softmax/f64/4x3x5_axis=1/normal/0", *SIM)
    assert other.status == 0 and "verdict" in other.out


def test_support_is_told_without_running(xinheng: Command) -> None:
    made = xinheng(*RUN, *SIM, *SMALL, "--mode", "support")
    assert made.status == 0
    assert re.search(r"^floor +yes +yes +yes", made.out, re.MULTILINE)
    lacking = xinheng(*RUN, "--device", "sim:no-bf16", "--op", "floor", "--mode", "support")
    assert lacking.status == 0
    columns = re.search(r"^op +(.*)$", lacking.out, re.MULTILINE)
    row = re.search(r"^floor +(.*)$", lacking.out, re.MULTILINE)
    assert columns is not None and row is not None
    assert dict(zip(columns[1].split(), row[1].split(), strict=True)) == {
        "bfloat16": "-",
        "float16": "yes",
        "float32": "yes",
    }


def test_times_stand_beside_errors(xinheng: Command) -> None:
    made = xinheng(*RUN, *SIM, "--op", "matmul", "--dtype", "int64", "--mode", "perf", "--json")
    assert made.status == 0
    shown = xinheng(*RUN, *SIM, "--op", "matmul", "--dtype", "int64", "--mode", "perf")
    assert "GFLOP/s" in shown.out and "of bandwidth" in shown.out
    assert re.search(r"^matmul/int64/\S+ +reference +[\d.,]+", shown.out, re.MULTILINE)


def test_listing(xinheng: Command) -> None:
    ids = xinheng("conformance", "list", "--op", "floor", "--dtype", "float16").out.split()
    assert ids and all(id.startswith("floor/f16/") for id in ids)
    more = xinheng("conformance", "list", "--op", "floor", "--dtype", "float16", "--tier", "full").out.split()
    assert {*ids} < {*more}
    rows = json.loads(xinheng("conformance", "list", "--op", "floor", "--count", "--json").out)
    assert {"op": "floor", "dtype": "float16", "items": len(ids)} in rows
    level = json.loads(xinheng("conformance", "list", "--level", "L0", "--json").out)
    assert not {item["op"] for item in level} & {"rms_norm", "all_reduce"}


def test_shards_are_merged(xinheng: Command, tmp_path: Path) -> None:
    folders = [tmp_path / str(n) for n in (1, 2)]
    for n, folder in enumerate(folders, 1):
        made = xinheng(*RUN, *SIM, "--op", "logical_not", "--shard", f"{n}/2", "--report", folder)
        assert made.status == 0
    made = xinheng("conformance", "merge", *folders, "--report", tmp_path / "all", "--json")
    assert made.status == 0
    assert json.loads(made.out)["figures"]["total"] == len(
        xinheng("conformance", "list", "--op", "logical_not").out.split()
    )
    assert xinheng("conformance", "merge", folders[0], "--report", tmp_path / "none").status == 1


def test_a_ledger_excuses_what_it_names(xinheng: Command, tmp_path: Path) -> None:
    run = (*RUN, "--device", "sim:saturating", "--op", "exp", "--dtype", "float16", "--suite", "ops")
    failed = json.loads(xinheng(*run, "--json").out)["failures"]
    assert failed
    ledger = tmp_path / "ledger.toml"
    entry = '[[expectation]]\nid = "{}"\nowner = "o"\nclass = "bug"\nissue = "i"\nexpires = 2999-01-01\n'
    ledger.write_text("".join(entry.format(outcome["id"]) for outcome in failed))
    excused = xinheng(*run, "--ledger", ledger, "--json")
    assert excused.status == 0
    assert json.loads(excused.out)["figures"]["debt"] > 0
    ledger.write_text(ledger.read_text() + entry.format("exp/f16/3x5/normal/0"))
    surprised = xinheng(*run, "--ledger", ledger)
    assert surprised.status == 1 and "exp/f16/3x5/normal/0: unexpected pass" in surprised.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tier", "huge"), "--tier 'huge' is none of default, full, exhaustive"),
        (("--level", "L7"), "there is no level 'L7'"),
        (("--mode", "guess"), "--mode 'guess' is none of test, support, perf"),
        (("--shard", "3/2"), "--shard '3/2' is not of the form"),
        (("--op", "sofmax", "--suite", "ops"), "no op 'sofmax', did you mean 'softmax'"),
        (("--suite", "opps"), "no conformance suite is called 'opps', did you mean 'ops'"),
        (("--option", "x"), "not of the form key=value"),
        (("--resume",), "--resume needs the --report folder"),
        (("--op", "floor", "--dtype", "int8", "--suite", "ops"), "no item is selected"),
    ],
)
def test_wrong_options_are_explained(xinheng: Command, arguments: tuple[str, ...], message: str) -> None:
    made = xinheng(*RUN, *SIM, *arguments)
    assert made.status == 1
    assert message in made.err
