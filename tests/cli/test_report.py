"""`xinheng report` and `xinheng conformance compare`, and a model that runs on certified devices only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xinheng.conformance.report import Report, write_report
from xinheng.core.certificate import Mode
from xinheng.core.hal import Numerics
from xinheng.core.plugins import PluginManager
from xinheng.core.signature import digest, public_key

from ..conformance.reports import DEVICE, LEVELS, MODES, OUTCOMES, outcome, report
from ..keys import make_key
from .conftest import Command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_report(report(), tmp_path / "out")
    return tmp_path / "out"


def edit(folder: Path, *, rehash: bool = False) -> None:
    """Make a failed item of the report pass."""
    path = folder / "report.json"
    document = json.loads(path.read_text("utf-8"))
    document["figures"]["pass_rate"] = 1.0
    if rehash:
        document["digest"] = digest(document)
    path.write_text(json.dumps(document), encoding="utf-8")


# --------------------------------------------------------------------------------------------------------------- verify
def test_an_unsigned_report_verifies_until_it_is_edited(xinheng: Command, folder: Path) -> None:
    done = xinheng("report", "verify", str(folder))
    assert (done.status, done.err) == (0, "")
    assert report().digest in done.out and "nobody signed it" in done.out
    edit(folder)
    done = xinheng("report", "verify", str(folder / "report.json"))
    assert done.status == 1 and "does not match its digest" in done.err and "report.json" in done.err


def test_an_edit_shows_whatever_is_hashed_anew(xinheng: Command, folder: Path, tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    assert xinheng("report", "sign", str(folder), "--key", str(private)).status == 0
    trusted = ("--trusted", str(public))
    done = xinheng("report", "verify", str(folder), *trusted)
    assert done.status == 0 and "a trusted key" in done.out
    assert xinheng("report", "verify", str(folder / "certificate.json"), *trusted).status == 0
    edit(folder, rehash=True)
    for arguments in ((), trusted):
        done = xinheng("report", "verify", str(folder), *arguments)
        assert done.status == 1 and "signature does not belong to the content" in done.err
    write_report(report(levels=LEVELS[:1]), folder)
    assert xinheng("report", "verify", str(folder)).status == 0
    done = xinheng("report", "verify", str(folder), *trusted)
    assert done.status == 1 and "nobody signed it" in done.err
    xinheng("report", "sign", str(folder), "--key", str(make_key(tmp_path, "other")[0]))
    done = xinheng("report", "verify", str(folder), "--set", f'runtime.trusted_keys=["{public}"]')
    assert done.status == 1 and "none of the trusted keys" in done.err


def test_verify_as_json(xinheng: Command, folder: Path, tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    told = json.loads(xinheng("report", "verify", str(folder), "--json").out)
    assert (told["digest"], told["signed_by"], told["trusted"]) == (report().digest, None, False)
    xinheng("report", "sign", str(folder), "--key", str(private))
    told = json.loads(xinheng("report", "verify", str(folder), "--json", "--trusted", str(public)).out)
    assert (told["signed_by"], told["trusted"]) == (public_key(str(public)), True)


# ----------------------------------------------------------------------------------------------------------------- sign
def test_sign_signs_all_forms_and_keeps_the_report(xinheng: Command, folder: Path, tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    done = xinheng("report", "sign", str(folder), "--key", str(private))
    assert done.status == 0 and public_key(str(public)) in done.out
    signed = Report.model_validate(json.loads((folder / "report.json").read_text("utf-8")))
    assert signed.model_copy(update={"signature": None}) == report()
    assert public_key(str(public)) in (folder / "report.html").read_text("utf-8")


def test_a_report_that_was_edited_is_not_signed(xinheng: Command, folder: Path, tmp_path: Path) -> None:
    edit(folder)
    done = xinheng("report", "sign", str(folder), "--key", str(make_key(tmp_path)[0]))
    assert done.status == 1 and "it is not signed" in done.err


def test_no_certificate_is_installed_where_no_level_is_reached(xinheng: Command, tmp_path: Path) -> None:
    write_report(report(levels=()), tmp_path / "out")
    key = str(make_key(tmp_path)[0])
    done = xinheng("report", "sign", str(tmp_path / "out"), "--key", key, "--install")
    assert done.status == 1 and "no level is reached" in done.err


# ----------------------------------------------------------------------------------------------------------------- show
def test_show(xinheng: Command, folder: Path, tmp_path: Path) -> None:
    done = xinheng("report", "show", str(folder))
    assert done.status == 0 and done.out.startswith("# Acme A1 <b>: L1")
    told = json.loads(xinheng("report", "show", str(folder), "--json").out)
    assert told["level"] == "L1" and told["figures"]["total"] == 6 and told["problems"] == []
    done = xinheng("report", "show", str(folder), "--write", str(tmp_path / "again"))
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == sorted(p.name for p in folder.iterdir())
    assert (tmp_path / "again" / "report.json").read_text("utf-8") == (folder / "report.json").read_text("utf-8")


def test_what_is_no_report_is_named(xinheng: Command, tmp_path: Path) -> None:
    done = xinheng("report", "show", str(tmp_path / "none.json"))
    assert done.status == 1 and "none.json" in done.err
    (tmp_path / "x.json").write_text("{}", encoding="utf-8")
    done = xinheng("report", "verify", str(tmp_path / "x.json"))
    assert done.status == 1 and "x.json" in done.err


# -------------------------------------------------------------------------------------------------------------- compare
def test_two_runs_compare_clean(xinheng: Command, folder: Path, tmp_path: Path) -> None:
    write_report(report(seconds=1.0), tmp_path / "later")
    done = xinheng("conformance", "compare", str(folder), str(tmp_path / "later" / "report.json"))
    assert (done.status, done.err) == (0, "") and "No regressions; 0 other changes." in done.out


def test_a_regression_is_an_exit_status(xinheng: Command, folder: Path, tmp_path: Path) -> None:
    worse = [outcome(verdict="fail", defect="numbers"), *OUTCOMES[1:]]
    device = DEVICE.model_copy(update={"driver": "driver 24.2"})
    write_report(report(outcomes=worse, levels=LEVELS[:1], device=device), tmp_path / "later")
    page = tmp_path / "page.html"
    arguments = ("conformance", "compare", str(folder), str(tmp_path / "later"))
    done = xinheng(*arguments, "--html", str(page))
    assert done.status == 1
    assert "level lost" in done.out and "driver 24.1 -> driver 24.2" in done.out
    assert "xinheng conformance case add/f32/8/normal/0 --device acme:0" in done.out
    assert "2 regressions" in page.read_text("utf-8")
    done = xinheng(*arguments, "--json")
    assert done.status == 1 and json.loads(done.out)["regressions"] == 2
    back = xinheng("conformance", "compare", str(tmp_path / "later"), str(folder))
    assert back.status == 0 and "level gained" in back.out


# -------------------------------------------------------------------------------------------- a certificate is required
def test_a_model_runs_on_a_certified_device_only(xinheng: Command, model: Path, tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    shelf = tmp_path / "shelf"
    required = [
        *("--set", "runtime.require_certificate=L1"),
        *("--set", f'runtime.trusted_keys=["{public}"]'),
        *("--set", f"runtime.certificates={shelf}"),
    ]
    for command in (("run", str(model), "hello", "--max-tokens", "2"), ("explain", str(model))):
        done = xinheng(*command, "--device", "cpu:0", *required)
        assert done.status == 1 and "has no certificate of level L1" in done.err
        assert "xinheng conformance run --device cpu:0 --level L1 --report DIR" in done.err
    manager = PluginManager()
    device = manager.open("cpu:0")
    header = DEVICE.model_copy(update=manager.identify(device).model_dump())
    modes = MODES.model_copy(update=Mode.of(device, Numerics()).model_dump())
    write_report(report(device=header, modes=modes), tmp_path / "out")
    done = xinheng("report", "sign", str(tmp_path / "out"), "--key", str(private), "--install", *required)
    assert done.status == 0 and [path.suffix for path in shelf.iterdir()] == [".json"]
    done = xinheng("explain", str(model), "--device", "cpu:0", *required)
    assert (done.status, done.err) == (0, "")
    done = xinheng("explain", str(model), "--device", "sim:exact", *required)
    assert done.status == 1 and "sim:exact is an emulation" in done.err
