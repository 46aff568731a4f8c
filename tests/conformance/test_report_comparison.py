"""Comparisons: what is a regression, what is not, and what comes first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from xinheng.conformance.report import Change, Comparison, Report, Scope
from xinheng.conformance.report.comparison import REGRESSIONS, Kind
from xinheng.core.suite import Outcome

from .reports import DEVICE, LEVELS, OUTCOMES, fingerprint, outcome, report


def compared(before: Report | Outcome, after: Report | Outcome, factor: float = 2.0) -> tuple[Change, ...]:
    sides = [side if isinstance(side, Report) else report(side) for side in (before, after)]
    return Comparison.of(sides[0], sides[1], factor).changes


def kinds(changes: tuple[Change, ...]) -> list[str]:
    return [change.kind.value for change in changes]


def test_two_runs_of_one_device_compare_clean() -> None:
    made = Comparison.of(report(), report(seconds=99.0))
    assert made.changes == () and made.facts == ()
    assert made.headline == "No regressions; 0 other changes."


@pytest.mark.parametrize(
    ("before", "after", "kind", "text"),
    [
        ({}, {"verdict": "fail", "defect": "numbers"}, "worse", ("pass", "fail: numbers")),
        ({}, {"verdict": "unsupported"}, "worse", ("pass", "unsupported")),
        ({}, {"verdict": "bad case"}, "worse", ("pass", "bad case")),
        ({"verdict": "unsupported"}, {"verdict": "fail"}, "worse", ("unsupported", "fail")),
        ({"verdict": "fail"}, {"verdict": "hang"}, "worse", ("fail", "hang")),
        ({"verdict": "hang"}, {"verdict": "crash"}, "worse", ("hang", "crash")),
        ({"verdict": "fail", "defect": "numbers"}, {}, "better", ("fail: numbers", "pass")),
        ({"verdict": "crash"}, {"verdict": "unsupported"}, "better", ("crash", "unsupported")),
        ({"kernel": "a"}, {"kernel": "b"}, "other kernel", ("a", "b")),
        ({}, {"determinism": ("D1",)}, "determinism lost", ("D3 held", "not shown")),
        ({"worst": 0.2}, {"worst": 0.41}, "errors grew", ("0.2 bounds", "0.41 bounds")),
        ({"worst": 0.0}, {"worst": 0.11}, "errors grew", ("0 bounds", "0.11 bounds")),
        ({"worst": 0.9}, {"worst": 0.1}, "errors shrank", ("0.9 bounds", "0.1 bounds")),
    ],
)
def test_a_change_has_a_name(before: dict[str, Any], after: dict[str, Any], kind: str, text: tuple[str, str]) -> None:
    (change,) = compared(outcome(**before), outcome(**after))
    assert (change.kind.value, change.before, change.after) == (kind, *text)
    assert (change.op, change.dtype) == ("add", "float32")
    assert change.regression == (change.kind in REGRESSIONS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"worst": 0.001}, {"worst": 0.05}),
        ({"worst": 0.4}, {"worst": 0.6}),
        ({}, {"determinism": ("D1", "D2", "D3")}),
        ({}, {"seconds": 5.0}),
        ({"kernel": ""}, {"kernel": "b"}),
    ],
    ids=["small", "factor", "more", "slower", "unnamed"],
)
def test_what_says_nothing_is_no_change(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert compared(outcome(**before), outcome(**after)) == ()


def test_the_factor_of_errors_is_the_callers() -> None:
    before, after = outcome(worst=0.2), outcome(worst=0.5)
    assert kinds(compared(before, after)) == ["errors grew"]
    assert compared(before, after, factor=3.0) == ()


def test_levels() -> None:
    lower = [LEVELS[0], LEVELS[1].model_copy(update={"reached": False})]
    lost = compared(report(), report(levels=lower))
    assert kinds(lost) == ["level lost"] and lost[0].regression and (lost[0].before, lost[0].after) == ("L1", "L0")
    gained = compared(report(levels=lower), report())
    assert kinds(gained) == ["level gained"] and not gained[0].regression
    assert compared(report(levels=()), report()) == ()


def test_an_announced_failure_is_a_regression_all_the_same_and_its_owner_is_named() -> None:
    passing = [o if o.op != "erf" else outcome("erf", "float16", worst=0.9) for o in OUTCOMES]
    change, *_ = compared(report(outcomes=passing, ledger=()), report())
    assert change.regression and change.after == "fail: numbers (known bug of wang@acme.example)"
    assert change.replay == "xinheng conformance case erf/f16/8/normal/0 --device acme:0"


def test_items_that_are_gone_are_a_regression_of_the_same_suite_only() -> None:
    fewer = report(outcomes=OUTCOMES[1:])
    (change,) = compared(report(), fewer)
    assert (change.kind, change.items, change.regression) == (Kind.GONE, ("add/f32/8/normal/0",), True)
    (new,) = compared(fewer, report())
    assert (new.kind, new.regression) == (Kind.NEW, False)
    for other in ({"suite_version": "1.1"}, {"scope": Scope(suites=("ops",), ops=("add",))}):
        made = Comparison.of(report(), report(outcomes=OUTCOMES[1:], **other))
        assert made.regressions == () and kinds(made.others) == ["no longer run"]


def test_regressions_come_first_the_worst_of_them_at_the_top() -> None:
    before = report(
        *(outcome("exp", "float32", i) for i in range(3)),
        outcome("sin", verdict="fail"),
        outcome("cos", kernel="a"),
        outcome("tanh", worst=0.2),
        outcome("add"),
    )
    after = report(
        *(outcome("exp", "float32", i, verdict="fail", defect="numbers", worst=2.0) for i in range(3)),
        outcome("sin"),
        outcome("cos", kernel="b"),
        outcome("tanh", worst=0.9),
        outcome("mul"),
        levels=LEVELS[:1],
    )
    made = Comparison.of(before, after)
    expected = ["level lost", "worse", "no longer run", "errors grew", "better", "new", "other kernel"]
    assert kinds(made.changes) == expected
    assert len(made.regressions) == 4 and len(made.changes[1].items) == 3
    assert made.headline == "4 regressions; 3 other changes."


def test_another_kernel_is_one_change_in_all_dtypes() -> None:
    kinds = ("float32", "float16")
    before = report(*(outcome("exp", kind, kernel="a") for kind in kinds))
    (change,) = compared(before, report(*(outcome("exp", kind, kernel="b") for kind in kinds)))
    assert (change.dtype, change.before, change.after, len(change.items)) == ("float16, float32", "a", "b", 2)


def test_what_differs_between_the_runs_is_told() -> None:
    device = DEVICE.model_copy(update={"driver": "driver 24.2", "packages": {"numpy": "2.1", "extra": "1"}})
    found = fingerprint().model_copy(update={"device": "acme:1"})
    made = Comparison.of(report(), report(device=device, suite_version="1.1", fingerprint=found))
    facts = {name: (a, b) for name, a, b in made.facts}
    assert facts["driver"] == ("driver 24.1", "driver 24.2")
    assert facts["suite version"] == ("1.0", "1.1")
    assert facts["numpy"] == ("2.0", "2.1") and facts["extra"] == ("none", "1")
    assert set(facts) == {"driver", "suite version", "numpy", "extra", "fingerprint"}


def test_it_is_plain_data() -> None:
    made = Comparison.of(report(), report(outcomes=OUTCOMES[1:]))
    data = json.loads(json.dumps(made.to_json()))
    assert data["regressions"] == 1 and data["changes"][0]["kind"] == "no longer run"
    assert data["before"] == {"device": "Acme A1 <b>", "level": "L1", "digest": report().digest}
