"""The suites of ONNX and PyTorch: what they cover, that devices pass them, and that wrong numbers fail them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from xinheng.conformance.suites import onnx_node, opinfo
from xinheng.conformance.suites.onnx_node import OnnxSuite
from xinheng.conformance.suites.opinfo import OpInfoSuite
from xinheng.conformance.suites.torch_table import COUNTERPARTS, NO_COUNTERPART
from xinheng.core.errors import XinhengError
from xinheng.core.hal import Device, ReferenceDevice
from xinheng.core.ops import OPSET
from xinheng.core.plugins import PluginManager
from xinheng.core.suite import Selection, Suite, Verdict


class Off(ReferenceDevice):
    """A device whose float results are a little too large, and whose integers are off by one."""

    def download(self, buffer: Any) -> Any:
        made = super().download(buffer)
        with np.errstate(all="ignore"):
            if made.dtype.kind == "f":
                return (made.astype(np.float64) * (1 + 2.0**-6) + 1e-3).astype(made.dtype)
            return made + np.ones((), made.dtype) if made.dtype.kind in "iu" else ~made if made.dtype == bool else made


@pytest.fixture(scope="module")
def cpu() -> Device:
    return PluginManager().open("cpu:0")


def counts(suite: Suite, device: Device, every: int = 1) -> Counter[Verdict]:
    return Counter(suite.run(item.id, device).verdict for item in suite.items()[::every])


# ---------------------------------------------------------------------------------------------------- both
@pytest.mark.parametrize("kind", [OnnxSuite, OpInfoSuite])
def test_items_are_stable_and_their_ids_differ(kind: type[Suite]) -> None:
    some = Selection(ops=frozenset({"add", "Add", "MatMul", "matmul"}))
    items = kind(some).items()
    assert items == kind(some).items()
    assert len({item.id for item in items}) == len(items) > 2
    assert {item.op.lower() for item in items} <= {"add", "matmul"}
    assert all(item.id.startswith(f"{kind.name}/") for item in items)


@pytest.mark.parametrize(("kind", "op"), [(OnnxSuite, "Softmax"), (OpInfoSuite, "softmax")])
def test_numbers_that_are_off_fail(kind: type[Suite], op: str) -> None:
    suite = kind(Selection(ops=frozenset({op}), dtypes=frozenset({"float32"})))
    outcomes = [suite.run(item.id, Off()) for item in suite.items()]
    assert {(o.verdict, o.defect) for o in outcomes} == {(Verdict.FAIL, "numbers")}
    assert all(o.worst is not None and o.worst > 1 and "outside their bounds" in o.message for o in outcomes)
    exact = [suite.run(item.id, ReferenceDevice()) for item in suite.items()]
    assert {o.verdict for o in exact} == {Verdict.PASS} and all((o.worst or 0) <= 1 for o in exact)


@pytest.mark.parametrize("kind", [OnnxSuite, OpInfoSuite])
def test_an_unknown_item_is_an_error(kind: type[Suite]) -> None:
    with pytest.raises(XinhengError, match=f"suite '{kind.name}' has no item"):
        kind(Selection()).run(f"{kind.name}/nonsense/f32/add/3", ReferenceDevice())


# ---------------------------------------------------------------------------------------------------- ONNX
def test_most_of_onnx_is_judged_by_our_bounds() -> None:
    suite = OnnxSuite(Selection(ops=frozenset({"Conv", "Gemm", "LayerNormalization", "Cast", "TopK", "LSTM", "Size"})))
    programs = Counter(suite.run(item.id, ReferenceDevice()).program for item in suite.items())
    assert programs[onnx_node.BOUND] > 0.7 * sum(programs.values())
    assert programs[""] < 0.3 * sum(programs.values())


def test_what_is_not_imported_is_nobodys_failure() -> None:
    outcome = OnnxSuite(Selection()).run("onnx/test_adagrad", ReferenceDevice())
    assert outcome.absent and "there is no import rule for it" in outcome.message


def test_wrong_expectations_blame_the_importer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_node, "differences", lambda *_: "y is off by up to 1.0")
    outcome = OnnxSuite(Selection()).run("onnx/test_add", ReferenceDevice())
    assert (outcome.verdict, outcome.defect) == (Verdict.BAD_CASE, "importer")


def test_almost_every_test_notices_wrong_numbers() -> None:
    suite = OnnxSuite(Selection())
    ops = frozenset(
        {"Add", "Conv", "Gemm", "MatMul", "Sigmoid", "Softmax", "LayerNormalization", "ReduceSum", "Concat"}
    )
    items = [item for item in suite.items() if item.op in ops and item.dtype == "float32"]
    found = Counter(suite.run(item.id, Off()).verdict for item in items)
    assert found[Verdict.FAIL] >= 0.97 * len(items) > 90, found


# ---------------------------------------------------------------------------------------------------- PyTorch
def test_every_op_is_mapped_or_has_no_counterpart() -> None:
    assert sorted({*COUNTERPARTS, *NO_COUNTERPART}) == sorted(OPSET)
    assert not COUNTERPARTS.keys() & NO_COUNTERPART.keys()
    functions = {name.split(".")[-1] for info in opinfo._infos() for name in (info, info.partition(".")[0])}
    assert NO_COUNTERPART.keys() & functions == set()


def test_every_function_exists_and_every_op_has_samples() -> None:
    assert {f for functions in COUNTERPARTS.values() for f in functions} - opinfo._infos().keys() == set()
    suite = OpInfoSuite(Selection())
    assert {item.op for item in suite.items()} == COUNTERPARTS.keys()


def test_what_is_not_covered_is_counted_with_its_reason() -> None:
    found = OpInfoSuite(Selection(ops=frozenset({"sum", "neg", "embedding"}))).uncovered()
    assert found["neg"] == {}
    assert found["sum"]["integers are added in int64"] > 0
    assert set(found["embedding"]) == {"renormalises the weight"}


def test_the_cpu_passes_every_third(cpu: Device) -> None:
    found = counts(OpInfoSuite(Selection()), cpu, every=3)
    assert found == {Verdict.PASS: found.total()}
    assert found.total() > 1000


def test_the_exact_simulation_passes_some_of_it() -> None:
    some = Selection(ops=frozenset({"matmul", "conv", "sdpa_varlen", "cast"}))
    device = PluginManager().open("sim:exact")
    assert set(counts(OpInfoSuite(some), device)) == {Verdict.PASS}


def test_a_full_tier_has_more() -> None:
    ops, dtypes = frozenset({"max_pool"}), frozenset({"bfloat16"})
    default, full = (len(OpInfoSuite(Selection(tier, ops, dtypes)).items()) for tier in (0, 1))
    assert full > 10 * default > 0


def test_another_process_draws_the_same_numbers() -> None:
    code = (
        "import sys; from xinheng.conformance.suites.opinfo import group\n"
        "samples = group('matmul', 'matmul', 'float32', False).samples\n"
        "print([(i, s.call.id, float(sum(v.sum() for v in s.call.values))) for i, s in samples.items()])"
    )
    here = opinfo.group("matmul", "matmul", "float32", False).samples
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.strip() == str([(i, s.call.id, float(sum(v.sum() for v in s.call.values))) for i, s in here.items()])


def test_a_wrong_mapping_blames_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = OpInfoSuite(Selection(ops=frozenset({"sub"}), dtypes=frozenset({"float32"})))
    first = suite.items()[0].id
    wrong = opinfo.TorchSample(suite._find(first).call, tuple(x + 1 for x in suite._find(first).expected))
    monkeypatch.setattr(suite, "_find", lambda _: wrong)
    outcome = suite.run(first, ReferenceDevice())
    assert (outcome.verdict, outcome.defect) == (Verdict.BAD_CASE, "meaning")
