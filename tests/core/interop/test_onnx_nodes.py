"""ONNX's own node tests: right on the references and on the CPU, or refused by name; never a wrong value."""

from __future__ import annotations

import string

import pytest

from xinheng.backends.cpu import CPUBackend
from xinheng.conformance.suites.onnx_node import prepare
from xinheng.core.hal import Device, DeviceSpec
from xinheng.core.suite import Verdict

from .node_suite import Outcomes, expected_refusals, refusal, run, summary, wrong

LETTERS = string.ascii_uppercase


class Letters:
    """Runs the tests of a letter once."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.done: dict[str, Outcomes] = {}

    def outcomes(self, letter: str) -> Outcomes:
        if letter not in self.done:
            self.done[letter] = run(self.device, letter)
        return self.done[letter]


@pytest.fixture(scope="module")
def letters() -> Letters:
    return Letters(CPUBackend().open(DeviceSpec.parse("cpu:0")))


@pytest.mark.parametrize("letter", LETTERS)
def test_nodes_are_right_or_refused(letters: Letters, letter: str) -> None:
    outcomes = letters.outcomes(letter)
    assert {name: o.message for name, (_, o) in outcomes.items() if wrong(o)} == {}
    refused = {name: test.op for name, (test, o) in outcomes.items() if refusal(o) is not None}
    assert refused == {name: op for name, op in expected_refusals().items() if op[0] == letter}


@pytest.mark.parametrize("letter", LETTERS)
def test_refusals_name_the_node_and_the_op_or_the_tensor(letters: Letters, letter: str) -> None:
    for name, (_, outcome) in letters.outcomes(letter).items():
        if (why := refusal(outcome)) is not None:
            assert why.startswith(("ONNX node '", "ONNX input '", "ONNX output '")), name
            assert "(" in why or "'" in why


def test_at_least_a_thousand_are_right(letters: Letters, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = {name: found for letter in LETTERS for name, found in letters.outcomes(letter).items()}
    with capsys.disabled():
        print(f"\n{summary(outcomes)}")
    imported = [test for test, o in outcomes.values() if refusal(o) is None]
    assert len(outcomes) > 1800
    assert sum(not prepare(test).specialised for test in imported) >= 1300
    assert sum(o.verdict is Verdict.PASS for _, o in outcomes.values()) >= 1000
