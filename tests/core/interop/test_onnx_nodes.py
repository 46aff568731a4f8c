"""ONNX's own node tests: right on the references and on the CPU, or refused by name; never a wrong value."""

from __future__ import annotations

import string

import pytest

from xinheng.backends.cpu import CPUBackend
from xinheng.core.hal import Device, DeviceSpec

from .node_suite import NodeTest, Outcome, expected_refusals, node_tests, run, summary

LETTERS = string.ascii_uppercase


class Suite:
    """Runs the tests of a letter once."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.done: dict[str, dict[str, tuple[NodeTest, Outcome]]] = {}

    def outcomes(self, letter: str) -> dict[str, tuple[NodeTest, Outcome]]:
        if letter not in self.done:
            tests = node_tests().get(letter, ())
            self.done[letter] = {test.name: (test, run(test, self.device)) for test in tests}
        return self.done[letter]


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite(CPUBackend().open(DeviceSpec.parse("cpu:0")))


@pytest.mark.parametrize("letter", LETTERS)
def test_nodes_are_right_or_refused(suite: Suite, letter: str) -> None:
    outcomes = suite.outcomes(letter)
    wrong = {n: o.detail for n, (_, o) in outcomes.items() if o.verdict == "wrong"}
    assert wrong == {}
    refused = {name: test.op for name, (test, o) in outcomes.items() if o.verdict == "refused"}
    listed = {name: op for name, op in expected_refusals().items() if op[0] == letter}
    assert refused == listed


@pytest.mark.parametrize("letter", LETTERS)
def test_refusals_name_the_node_and_the_op_or_the_tensor(suite: Suite, letter: str) -> None:
    for name, (_, outcome) in suite.outcomes(letter).items():
        if outcome.verdict == "refused":
            assert outcome.detail.startswith(("ONNX node '", "ONNX input '", "ONNX output '")), name
            assert "(" in outcome.detail or "'" in outcome.detail


def test_at_least_a_thousand_are_right(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = {name: found for letter in LETTERS for name, found in suite.outcomes(letter).items()}
    with capsys.disabled():
        print(f"\n{summary(outcomes)}")
    right = [outcome for _, outcome in outcomes.values() if outcome.verdict == "right"]
    assert len(outcomes) > 1800
    assert sum(not outcome.specialised for outcome in right) >= 1300
    assert sum(outcome.on_device for outcome in right) >= 1000
