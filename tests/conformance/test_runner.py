"""Runs in worker processes: what ends a worker is the verdict of its item, and a killed run goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from xinheng.conformance.running.journal import NAME
from xinheng.conformance.running.plan import Plan, Shard
from xinheng.conformance.running.runner import Means, Result, run, shares
from xinheng.core.errors import DeviceError, FormatError, PluginError, SettingsError
from xinheng.core.suite import Outcome, Verdict

SUITE = "troublesome:TroublesomeSuite"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The suite of these tests can be imported, here and in workers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield
    sys.modules.pop("troublesome", None)


def plan(**options: str) -> Plan:
    return Plan("sim:exact", (SUITE,), options=options)


def timeless(outcomes: tuple[Outcome, ...]) -> list[Outcome]:
    """Outcomes without what is different in each run."""
    return [outcome.model_copy(update={"seconds": 0.0}) for outcome in outcomes]


def test_what_ends_a_worker_is_the_verdict_of_its_item() -> None:
    ends = "1=crash,3=hang,4=exit,5=killed,6=memory,7=bug"
    made = run(plan(items="9", ends=ends), Means(workers=1, patience=1.0)).outcomes
    assert [outcome.id for outcome in made] == [f"troublesome/{i}" for i in range(9)]
    verdicts = {i: (o.verdict, o.defect) for i, o in enumerate(made) if o.verdict is not Verdict.PASS}
    assert verdicts == {
        1: (Verdict.CRASH, "crash"),
        3: (Verdict.HANG, "hang"),
        4: (Verdict.CRASH, "crash"),
        5: (Verdict.OUT_OF_MEMORY, "out-of-memory"),
        6: (Verdict.OUT_OF_MEMORY, "out-of-memory"),
        7: (Verdict.BAD_CASE, "error"),
    }
    assert "SIGSEGV" in made[1].message and "Segmentation fault" in made[1].message
    assert "within 1 s" in made[3].message
    assert "status 5" in made[4].message
    assert "SIGKILL" in made[5].message
    assert "ZeroDivisionError: a bug of the suite" in made[7].message


def test_several_workers_give_the_outcomes_of_one() -> None:
    ends = "2=crash,7=exit"
    one = run(plan(items="12", ends=ends), Means(workers=1)).outcomes
    assert timeless(run(plan(items="12", ends=ends), Means(workers=3)).outcomes) == timeless(one)


def test_results_that_no_other_process_makes_again_break_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    alike = run(plan(items="60"), Means(workers=1)).outcomes
    again = [outcome.id for outcome in alike if "D2" in outcome.determinism]
    assert again
    made = run(plan(items="60", digest="process"), Means(workers=1))
    assert made.about.determinism >= "D2"
    failed = [outcome for outcome in made.outcomes if outcome.verdict is not Verdict.PASS]
    assert [outcome.id for outcome in failed] == again
    assert {outcome.defect for outcome in failed} == {"process"}


def test_a_device_that_cannot_be_opened_fails_the_run_with_its_own_error() -> None:
    with pytest.raises(DeviceError, match="sim:nothing does not exist"):
        run(replace(plan(), device="sim:nothing"))


def test_a_suite_that_does_not_exist_is_named() -> None:
    with pytest.raises(PluginError, match="did you mean 'ops'"):
        run(Plan("sim:exact", ("opps",)))


def test_nothing_selected_is_no_pass() -> None:
    with pytest.raises(SettingsError, match="no item is selected"):
        run(plan(items="0"))
    with pytest.raises(SettingsError, match="there is no op 'softmaxx', did you mean 'softmax'"):
        Plan("sim:exact", ops=("softmaxx",))


def test_a_shard_without_items_is_no_pass() -> None:
    with pytest.raises(SettingsError, match="3/3 has no item"):
        run(replace(plan(items="2"), shard=Shard(3, 3)))


def started(folder: Path, pids: Path) -> subprocess.Popen[bytes]:
    command = ["conformance", "run", "--device", "sim:exact", "--suite", SUITE, "--report", folder, "--workers", "2"]
    options = ["items=40", "seconds=0.05", f"pids={pids}", "ends=5=crash,30=exit"]
    command += [word for option in options for word in ("--option", option)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, "-m", "xinheng", *map(str, command)], env=environment)


def test_a_killed_run_goes_on_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    folder, pids = tmp_path / "report", tmp_path / "pids"
    process = started(folder, pids)
    journal = folder / NAME
    until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 12)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not any(map(alive, map(int, set(pids.read_text().split())))))
    kept = journal.read_bytes().count(b"\n")
    assert 12 < kept < 40
    pids.unlink()

    same = plan(items="40", seconds="0.05", pids=str(pids), ends="5=crash,30=exit")
    resumed = run(same, Means(workers=1, folder=folder, resume=True))
    assert len(pids.read_text().split()) < 40
    assert timeless(resumed.outcomes) == timeless(run(same, Means(workers=1)).outcomes)


def until(happened: object, seconds: float = 30.0) -> None:
    assert callable(happened)
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def finished(folder: Path, **options: str) -> Result:
    return run(plan(items="4", **options), Means(workers=1, folder=folder))


def test_a_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    finished(tmp_path)
    with pytest.raises(SettingsError, match="of another run: options is"):
        run(plan(items="5"), Means(workers=1, folder=tmp_path, resume=True))
    with pytest.raises(SettingsError, match="of another run: numerics"):
        fast = replace(plan(items="4"), numerics=replace(plan().numerics, mode="fast"))
        run(fast, Means(workers=1, folder=tmp_path, resume=True))


def test_a_journal_may_end_in_the_middle_of_a_line_and_nowhere_else(tmp_path: Path) -> None:
    whole = finished(tmp_path)
    journal = tmp_path / NAME
    text = journal.read_text()
    journal.write_text(text[:-30])
    resumed = run(plan(items="4"), Means(workers=1, folder=tmp_path, resume=True))
    assert timeless(resumed.outcomes) == timeless(whole.outcomes)

    lines = text.splitlines(keepends=True)
    journal.write_text("".join([lines[0], lines[1][:20] + "\n", *lines[2:]]))
    with pytest.raises(FormatError, match="line 2 is no line of a journal"):
        run(plan(items="4"), Means(workers=1, folder=tmp_path, resume=True))


def test_a_run_that_is_not_resumed_begins_anew(tmp_path: Path) -> None:
    finished(tmp_path)
    (tmp_path / NAME).write_text("what was here before\n")
    finished(tmp_path)
    assert json.loads((tmp_path / NAME).read_text().splitlines()[0])["journal"] == 1


def test_workers_share_the_cores() -> None:
    host, emulated = Plan("cpu:0"), Plan("sim:exact")
    assert shares(emulated, Means(), 8) == (8, 1)
    assert shares(host, Means(), 8) == (4, 2)
    assert shares(host, Means(), 1) == (1, 1)
    assert shares(host, Means(workers=2), 8) == (2, 4)
    assert shares(host, Means(workers=16), 8) == (16, 1)
    assert shares(host, Means(workers=2, threads=1), 8) == (2, 1)
