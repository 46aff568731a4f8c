"""The three ways to a composite: who is named when one of them is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.cases import SAMPLES, find
from xinheng.conformance.equivalence import Relation, compare, composites
from xinheng.conformance.suites.equivalence import PREFIX, EquivalenceSuite
from xinheng.core.errors import UnsupportedOp
from xinheng.core.hal import Device, KernelRegistry, Numerics, ReferenceDevice
from xinheng.core.ops import OPSET
from xinheng.core.suite import Outcome, Selection, Verdict

from .wrong_devices import Program, device_with, eps_outside, low_silu

RIGHT = {name: op.reference for name, op in OPSET.items()}


def sample(op: str, kind: str = "f32", data: str = "normal") -> str:
    """The id of some case of an op."""
    found = next(s for s in SAMPLES[op] if data in s.data and s.floats and not s.special)
    return f"{op}/{kind}/{found.label}/{data}/0"


def outcome(device: Device, id: str) -> Outcome:
    return EquivalenceSuite(Selection()).run(f"{PREFIX}{id}", device)


def slightly(program: Program) -> Program:
    """Off by a thousandth."""
    return lambda *operands, **attributes: 1.001 * program(*operands, **attributes)


WRONG: list[tuple[str, Mapping[str, Program], str, str]] = [
    (sample("rms_norm", data="tiny"), {"rms_norm": eps_outside}, "fused-kernel", "fused kernel wrong"),
    (sample("silu_and_mul"), {"silu_and_mul": low_silu}, "fused-kernel", "fused kernel wrong"),
    (sample("rms_norm"), {"rsqrt": slightly(RIGHT["rsqrt"])}, "primitive", "primitive wrong: rsqrt"),
    (sample("softmax"), {"exp": slightly(RIGHT["exp"])}, "", ""),  # what all terms have cancels
    (sample("softmax"), {"exp": lambda x: np.exp(1.001 * x)}, "primitive", "primitive wrong: exp"),
    (sample("linear"), {"matmul": slightly(RIGHT["matmul"])}, "primitive", "primitive wrong: matmul"),
    (
        sample("rms_norm"),
        {"rsqrt": slightly(RIGHT["rsqrt"]), "rms_norm": slightly(RIGHT["rms_norm"])},
        "primitive",
        "the fused kernel is off too",
    ),
]


@pytest.mark.parametrize(("id", "programs", "defect", "told"), WRONG, ids=[f"{t or 'agreed'}" for *_, t in WRONG])
def test_who_is_wrong(id: str, programs: Mapping[str, Program], defect: str, told: str) -> None:
    found = outcome(device_with(**programs), id)
    assert (found.defect, found.verdict) == (defect, Verdict.FAIL if defect else Verdict.PASS), found.message
    assert told in found.message


@pytest.mark.parametrize(("op", "wrong"), [("rms_norm", eps_outside), ("silu_and_mul", low_silu)])
def test_a_wrong_reference_is_disputed(op: str, wrong: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_with(**{op: RIGHT[op]})
    monkeypatch.setattr(OPSET[op], "reference", wrong)
    found = outcome(device, sample(op, data="tiny" if op == "rms_norm" else "normal"))
    assert (found.defect, found.verdict) == ("reference-disputed", Verdict.BAD_CASE)
    assert found.message.startswith("reference disputed: the decomposition gives what the kernel gives")


@pytest.mark.parametrize("op", composites())
def test_right_devices_agree(op: str, device: Device) -> None:
    suite = EquivalenceSuite(Selection(ops=frozenset({op})))
    items = suite.items()
    assert items
    for item in items[:: max(1, len(items) // 2)]:
        found = suite.run(item.id, device)
        assert found.verdict is Verdict.PASS or found.absent, f"{item.id}: {found.message}"


def test_without_a_kernel_of_its_own_there_is_nothing_to_compare() -> None:
    device = ReferenceDevice("test:bare")
    whole, device.kernels = device.kernels, KernelRegistry()
    for op in OPSET.values():
        if not op.composite:
            (kernel,) = whole.candidates(op.name)
            device.kernels.register(op, name="reference")(kernel.function)
    with pytest.raises(UnsupportedOp, match="no kernel of its own for softmax"):
        compare(find(sample("softmax")).call, device, Numerics())
    found = outcome(device, sample("softmax"))
    assert found.absent
    assert "nothing to compare" in found.message


def test_a_kernel_that_fails_is_an_outcome() -> None:
    def broken(*operands: Any, **attributes: Any) -> Any:
        raise RuntimeError("the chip is on fire")

    found = outcome(device_with(rms_norm=broken), sample("rms_norm"))
    assert (found.verdict, found.defect) == (Verdict.FAIL, "error")
    assert "the chip is on fire" in found.message


def test_items_are_few_by_default_and_all_in_the_full_tier() -> None:
    few, full = (EquivalenceSuite(Selection(tier=tier, ops=frozenset({"softmax"}))).items() for tier in (0, 1))
    assert 3 <= len(few) <= 24
    assert len(full) > 4 * len(few)
    assert {item.id for item in few} <= {item.id for item in full}
    assert {Relation.AGREED, Relation.FUSED, Relation.PRIMITIVE, Relation.DISPUTED} == set(Relation)
