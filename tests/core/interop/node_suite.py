"""ONNX's own tests of single nodes on a device, and which of them the importer refuses.

python -m tests.core.interop.node_suite     writes the file of refused tests anew, for review as a diff
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from xinheng.conformance.suites.onnx_node import NodeTest, OnnxSuite, node_tests
from xinheng.core.hal import Device
from xinheng.core.suite import Outcome, Selection, Verdict

REFUSED = Path(__file__).with_name("refused.toml")
NOT_IMPORTED = "not imported: "
Outcomes = Mapping[str, tuple[NodeTest, Outcome]]


def run(device: Device, letter: str = "") -> Outcomes:
    """The outcomes of all tests whose op begins with a letter, by name."""
    suite = OnnxSuite(Selection())
    chosen = {name: test for name, test in node_tests().items() if test.op.startswith(letter)}
    return {name: (test, suite.run(test.id, device)) for name, test in chosen.items()}


def refusal(outcome: Outcome) -> str | None:
    """Why the importer refuses a test."""
    refused = outcome.verdict is Verdict.UNSUPPORTED and outcome.message.startswith(NOT_IMPORTED)
    return outcome.message.removeprefix(NOT_IMPORTED) if refused else None


def wrong(outcome: Outcome) -> bool:
    return outcome.verdict not in (Verdict.PASS, Verdict.UNSUPPORTED)


def expected_refusals() -> dict[str, str]:
    """The op of each test that is known to be refused."""
    listed = tomllib.loads(REFUSED.read_text(encoding="utf-8"))
    return {name: op for op, entry in listed.items() for name in entry["tests"]}


def write_refusals(outcomes: Outcomes) -> None:
    """Write the file of refused tests by op, each op with the reason of its first test."""
    lines = ["# ONNX node tests that the importer refuses, by op. Written by node_suite.py; stale entries fail.\n"]
    grouped: dict[str, list[tuple[str, str]]] = {}
    for test, outcome in outcomes.values():
        if (why := refusal(outcome)) is not None:
            grouped.setdefault(test.op, []).append((test.name, why))
    for op, entries in sorted(grouped.items()):
        reason = entries[0][1].split("; supported:")[0].replace("\\", "").replace('"', "'")
        tests = "".join(f'    "{name}",\n' for name, _ in sorted(entries))
        lines.append(f'\n[{op}]\nreason = "{reason}"\ntests = [\n{tests}]\n')
    REFUSED.write_text("".join(lines), encoding="utf-8")


def summary(outcomes: Outcomes) -> str:
    """One line of counts."""
    found = [outcome for _, outcome in outcomes.values()]
    ran = Counter(o.program for o in found if o.verdict is Verdict.PASS)
    refused = sum(refusal(o) is not None for o in found)
    judged = ", ".join(f"{count} by {program}" for program, count in ran.most_common())
    return (
        f"ONNX node tests: {len(found)} in all, {ran.total()} right on the device ({judged}), "
        f"{sum(map(wrong, found))} wrong, {refused} refused"
    )


def main() -> None:
    from xinheng.backends.cpu import CPUBackend
    from xinheng.core.hal import DeviceSpec

    outcomes = run(CPUBackend().open(DeviceSpec.parse("cpu:0")))
    write_refusals(outcomes)
    print(summary(outcomes))
    print(*(f"{name}: {o.message}" for name, (_, o) in outcomes.items() if wrong(o)), sep="\n")


if __name__ == "__main__":
    main()
