"""A report as JUnit XML, which every CI system can show: a suite per op, a test case per item.

The form is the common subset of what Jenkins, GitLab and GitHub read. A run that fails has a failing test case, also
when no item is to blame: what else is wrong stands in a suite of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from xinheng.core.suite import Outcome, Verdict

from .model import LedgerEntry, Report
from .view import replay

FORBIDDEN = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow."""
ERRORS = (Verdict.CRASH, Verdict.HANG, Verdict.OUT_OF_MEMORY, Verdict.BAD_CASE)
"""Verdicts that are errors rather than failures in the words of JUnit."""


def report_junit(report: Report) -> str:
    """The XML document."""
    root = ElementTree.Element("testsuites", name=_text(f"xinheng conformance of {report.device.spec}"))
    by_op: dict[str, list[Outcome]] = {}
    for outcome in report.outcomes:
        by_op.setdefault(outcome.op, []).append(outcome)
    fine = {outcome.id for outcome in report.tolerated}
    failing, excused = {outcome.id for outcome in report.failures} - fine, report.excused
    for op, outcomes in by_op.items():
        _suite(root, report, op, [_case(report, o, o.id in failing, excused.get(o.id)) for o in outcomes])
    if report.complaints:
        _suite(root, report, "run", [_complaint(n, text) for n, text in enumerate(report.complaints, 1)])
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")
    ElementTree.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ElementTree.tostring(root, encoding='unicode')}\n"


def _suite(root: ElementTree.Element, report: Report, name: str, cases: Sequence[ElementTree.Element]) -> None:
    kinds = [case[0].tag if len(case) else "" for case in cases]
    suite = ElementTree.SubElement(root, "testsuite", name=_text(name), tests=str(len(cases)))
    suite.set("failures", str(kinds.count("failure")))
    suite.set("errors", str(kinds.count("error")))
    suite.set("skipped", str(kinds.count("skipped")))
    suite.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")
    suite.set("timestamp", report.created.partition("+")[0])
    suite.set("hostname", _text(report.device.spec))
    suite.extend(cases)


def _case(report: Report, outcome: Outcome, failing: bool, entry: LedgerEntry | None) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=_text(f"xinheng.{outcome.op}"), name=_text(outcome.id))
    case.set("time", f"{outcome.seconds:.3f}")
    if failing:
        tag = "error" if outcome.verdict in ERRORS else "failure"
        kind = outcome.defect or outcome.verdict.value
        element = ElementTree.SubElement(case, tag, type=_text(kind), message=_text(outcome.message or kind))
        element.text = _text(f"{outcome.message}\n{replay(report, outcome)}")
    elif outcome.verdict is not Verdict.PASS:
        known = f"known {entry.kind} of {entry.owner}, {entry.issue}, until {entry.expires}" if entry else ""
        ElementTree.SubElement(case, "skipped", message=_text(known or outcome.message or outcome.verdict.value))
    return case


def _complaint(number: int, text: str) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname="xinheng.run", name=f"problem {number}", time="0.000")
    ElementTree.SubElement(case, "failure", type="run", message=_text(text))
    return case


def _text(text: str) -> str:
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
