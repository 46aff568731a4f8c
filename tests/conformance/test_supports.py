"""The suite `supports`: a device may refuse what no table lists, and has to compute rightly what it does not refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.conformance.suites.supports import SupportSuite, parsed
from xinheng.core.errors import GraphError
from xinheng.core.hal import Capabilities, KernelRegistry, ReferenceDevice
from xinheng.core.ir.dtype import float64, int64
from xinheng.core.ops import OPSET
from xinheng.core.suite import Outcome, Selection, Verdict

ITEMS = SupportSuite(Selection()).items()
WIDE = "supports/softmax/f64/3x7/normal/0"


def device(kernel: Any = None) -> ReferenceDevice:
    made = ReferenceDevice("chip")
    if kernel is not None:
        made.kernels = KernelRegistry(made.kernels)
        made.kernels.register(OPSET["softmax"], name="odd", priority=9)(kernel)
    return made


def run(id: str, on: ReferenceDevice) -> Outcome:
    return SupportSuite(Selection()).run(id, on)


def test_every_op_with_operands_of_several_dtypes_is_varied() -> None:
    assert {item.op for item in ITEMS} >= {"add", "softmax", "matmul", "paged_attention", "embedding", "cast", "topk"}
    assert len({item.id for item in ITEMS}) == len(ITEMS)
    assert [item.id for item in SupportSuite(Selection()).items()] == [item.id for item in ITEMS]
    more = {item.id for item in SupportSuite(Selection(tier=1, ops=frozenset({"add"}))).items()}
    assert {item.id for item in ITEMS if item.op == "add"} < more


@pytest.mark.parametrize("item", ITEMS[::40], ids=lambda item: item.id)
def test_an_id_is_enough_and_the_reference_passes(item: Any) -> None:
    variant = parsed(item.id)
    assert variant.id == item.id and variant.case.op == item.op
    made = run(item.id, device())
    assert (made.id, made.verdict, made.message) == (item.id, Verdict.PASS, "")


def test_an_operand_of_another_integer_type() -> None:
    variant = next(parsed(item.id) for item in ITEMS if item.id.endswith("/x0:int64"))
    assert variant.case.sample.operands[0].dtype is int64


def test_a_refusal_passes_and_a_wrong_result_fails() -> None:
    def nothing(x: Any, axis: int = -1) -> Any:
        return np.zeros_like(x)

    assert run(WIDE, device()).verdict is Verdict.PASS
    narrow = device()
    narrow.capabilities = Capabilities(narrow.capabilities.dtypes - {float64})
    refused = run(WIDE, narrow)
    assert (refused.verdict, refused.defect) == (Verdict.PASS, "")
    wrong = run(WIDE, device(nothing))
    assert (wrong.verdict, wrong.defect) == (Verdict.FAIL, "numbers")


def test_a_kernel_that_was_promised_and_raises_fails() -> None:
    def kernel(x: Any, axis: int = -1) -> Any:
        raise NotImplementedError("not in this dtype")

    made = run(WIDE, device(kernel))
    assert (made.verdict, made.defect) == (Verdict.FAIL, "error")
    assert "not in this dtype" in made.message


@pytest.mark.parametrize(
    "id", ["supports/softmax/f64/3x7/normal/0/x0:float9", "supports/softmax/f64/3x7/normal/0/x7:int8"]
)
def test_an_id_of_nothing_is_refused(id: str) -> None:
    with pytest.raises(GraphError):
        parsed(id)
