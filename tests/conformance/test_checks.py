"""Each check finds the fault that it is for, on small devices with one; faults of whole chips are tests of `sim`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xinheng.conformance.case import find
from xinheng.conformance.cases import SAMPLES
from xinheng.conformance.checks.batch import ELEMENTWISE, REDUCTIONS, ROWS, SEQUENCES, WITHOUT, parts
from xinheng.conformance.checks.bits import difference, digest, same
from xinheng.conformance.examination import Examination
from xinheng.core.errors import DeviceError, OutOfMemory, UnsupportedOp
from xinheng.core.hal import ANY_ORDER, Arithmetic, Capabilities, KernelRegistry, Numerics, ReferenceDevice
from xinheng.core.ir import Tolerance
from xinheng.core.ir.dtype import float32, int64
from xinheng.core.ops import OPSET
from xinheng.core.suite import Outcome, Verdict

CASE = "softmax/f32/5x65/normal/0"


def chip(op: str, kernel: Any, determinism: str = "D4", **capabilities: Any) -> ReferenceDevice:
    """The reference, but for one kernel."""
    device = ReferenceDevice("chip")
    known = device.capabilities.dtypes
    arithmetic = Arithmetic(ANY_ORDER, determinism=determinism)
    device.capabilities = Capabilities(
        **{"dtypes": known, "unified_memory": True, "arithmetic": arithmetic, **capabilities}
    )
    device.kernels = KernelRegistry(device.kernels)
    device.kernels.register(OPSET[op], name="odd", priority=9)(kernel)
    return device


def examined(device: ReferenceDevice, id: str = CASE, numerics: Numerics | None = None) -> Outcome:
    return Examination(find(id), device, numerics or Numerics()).outcome()


def softmax(x: Any, axis: int = -1) -> Any:
    """A correct kernel."""
    wide = np.exp(x - x.max(axis=axis, keepdims=True))
    return (wide / wide.sum(axis=axis, keepdims=True)).astype(x.dtype)


def test_a_correct_kernel_passes_with_every_level_that_one_process_can_see() -> None:
    made = examined(chip("softmax", softmax))
    assert (made.verdict, made.kernel, made.program) == (Verdict.PASS, "odd", "reference")
    assert made.determinism == ("D1", "D3", "D4")
    assert made.worst is not None and 0 < made.worst < 1 and made.digest


def test_wrong_numbers() -> None:
    made = examined(chip("softmax", lambda x, axis=-1: softmax(x, axis=axis) * np.float32(1.001)))
    assert (made.verdict, made.defect) == (Verdict.FAIL, "numbers")
    assert made.worst is not None and made.worst > 1
    assert "outside their bounds" in made.message


def test_an_infinite_error_stays_a_number() -> None:
    made = examined(chip("softmax", lambda x, axis=-1: softmax(x, axis=axis) + np.float32(np.inf)))
    assert made.worst == 1e9


def test_a_changed_input() -> None:
    def kernel(x: Any, axis: int = -1) -> Any:
        made = softmax(x, axis=axis)
        x[0] = 0
        return made

    made = examined(chip("softmax", kernel))
    assert (made.defect, made.verdict) == ("inputs-changed", Verdict.FAIL)
    assert "its input x0" in made.message


class Times:
    """A kernel that does something to its results from the second call on."""

    def __init__(self, change: Callable[[Any, int], Any]) -> None:
        self.calls, self.change = 0, change

    @property
    def kernel(self) -> Callable[..., Any]:
        def kernel(x: Any, axis: int = -1) -> Any:
            self.calls += 1
            return self.change(softmax(x, axis=axis), self.calls)

        return kernel


def nudged(made: Any, steps: int = 1) -> Any:
    """The first element moved by so little that it stays within its bound."""
    made = made.copy()
    for _ in range(steps):
        made.flat[0] = np.nextafter(made.flat[0], np.float32(2))
    return made


def test_bits_that_change_from_run_to_run_break_a_promise_and_are_noted_without_one() -> None:
    made = examined(chip("softmax", Times(lambda y, n: nudged(y, n % 5)).kernel))
    assert (made.verdict, made.defect) == (Verdict.FAIL, "repeat")
    free = examined(chip("softmax", Times(lambda y, n: nudged(y, n % 5)).kernel, "D0"))
    assert free.verdict is Verdict.PASS
    assert "D1" not in free.determinism and not free.digest


def test_what_is_left_over_from_the_call_before() -> None:
    class Keeping:
        """Plans anew for each executable, whose second call returns a quarter of the results of the first."""

        def plan(self, node: Any, bounds: Any) -> Callable[..., Any]:
            before: list[Any] = []

            def kernel(x: Any, axis: int = -1) -> Any:
                made = softmax(x, axis=axis)
                if before and before[0].shape == made.shape:
                    made[-4:] = before[0][-4:]
                before[:] = [made.copy()]
                return made

            return kernel

    made = examined(chip("softmax", Keeping()))
    assert (made.verdict, made.defect) == (Verdict.FAIL, "stale")


def test_a_row_that_depends_on_its_batch() -> None:
    def kernel(x: Any, axis: int = -1) -> Any:
        made = softmax(x, axis=axis)
        return nudged(made) if len(x) == 1 else made

    id = "softmax/f32/5x65/normal/0"
    made = examined(chip("softmax", kernel), id)
    assert (made.verdict, made.defect) == (Verdict.FAIL, "batch")
    assert "alone has other bits" in made.message
    free = examined(chip("softmax", kernel, "D2"), id)
    assert free.verdict is Verdict.PASS and "D3" not in free.determinism


def test_a_device_that_says_yes_and_refuses() -> None:
    class Lying(ReferenceDevice):
        def supports(self, node: Any) -> bool:
            return True

    device = Lying("chip")
    device.kernels = KernelRegistry()
    made = examined(device, "add/f32/3x5,3x5/normal/0")
    assert (made.verdict, made.defect) == (Verdict.FAIL, "supports")
    assert "has no kernel for it" in made.message


def test_a_device_that_says_no_and_runs() -> None:
    class Modest(ReferenceDevice):
        def supports(self, node: Any) -> bool:
            return node.op.name != "softmax" and super().supports(node)

    made = examined(Modest("chip"))
    assert (made.verdict, made.defect) == (Verdict.FAIL, "supports")
    assert "has kernel 'reference'" in made.message


def test_a_device_that_cannot_even_say() -> None:
    class Failing(ReferenceDevice):
        def supports(self, node: Any) -> bool:
            raise ZeroDivisionError("no idea")

    made = examined(Failing("chip"))
    assert (made.verdict, made.defect) == (Verdict.FAIL, "supports")
    assert "ZeroDivisionError: no idea" in made.message


def raising(error: Exception) -> Callable[..., Any]:
    def kernel(x: Any, axis: int = -1) -> Any:
        raise error

    return kernel


def test_errors_of_the_device() -> None:
    for error in (ValueError("broken"), DeviceError("broken")):
        made = examined(chip("softmax", raising(error)))
        assert (made.verdict, made.defect) == (Verdict.FAIL, "error")
        assert "broken" in made.message
    refusing = examined(chip("softmax", raising(UnsupportedOp("not today"))))
    assert (refusing.verdict, refusing.defect) == (Verdict.FAIL, "supports")
    full = examined(chip("softmax", raising(OutOfMemory("full"))))
    assert (full.verdict, full.defect, full.message) == (Verdict.OUT_OF_MEMORY, "out-of-memory", "full")


def test_what_a_device_does_not_declare_to_have_is_absent_unless_it_is_float32() -> None:
    device = ReferenceDevice("chip")
    device.kernels = KernelRegistry()
    wide = examined(device, "abs/int64/3_int64/given/0")
    assert (wide.verdict, wide.defect) == (Verdict.UNSUPPORTED, "")
    device.capabilities = Capabilities(device.capabilities.dtypes - {int64})
    assert examined(device, "abs/int64/3_int64/given/0").absent
    device.capabilities = Capabilities(device.capabilities.dtypes - {float32})
    made = examined(device)
    assert (made.verdict, made.defect) == (Verdict.UNSUPPORTED, "") and not made.absent


def test_a_useless_bound_is_the_fault_of_the_case() -> None:
    device = ReferenceDevice("chip")
    device.capabilities = Capabilities(device.capabilities.dtypes, arithmetic=Arithmetic(ANY_ORDER, ulps=1e9))
    made = examined(device, "exp/f32/3x5/normal/0")
    assert (made.verdict, made.defect) == (Verdict.BAD_CASE, "useless-bound")


def whole_rows() -> Iterator[tuple[str, Any]]:
    for op in OPSET:
        found = ((sample, list(parts(sample.case().call))) for sample in SAMPLES[op])
        yield op, next((pair for pair in found if pair[1]), None)


def test_each_op_has_a_batch_or_a_reason_to_have_none() -> None:
    tables = (ELEMENTWISE, REDUCTIONS, {*ROWS}, {*SEQUENCES}, {*WITHOUT}, {"matmul", "int_matmul"})
    for op in OPSET.values():
        listed = sum(op.name in table for table in tables)
        if op.tolerance is not Tolerance.EXACT:
            assert listed == 1, f"{op.name} stands in {listed} tables of checks.batch"
    assert {op for table in tables for op in table} <= {*OPSET}


def test_the_parts_of_a_batch_mean_what_they_mean_in_it() -> None:
    """The tables of batches are right: in float64, parts alone and within the batch are the same up to rounding."""
    for op, found in whole_rows():
        if OPSET[op].tolerance is Tolerance.EXACT or op in WITHOUT:
            assert found is None
            continue
        assert found is not None, f"no sample of {op} has a batch of two"
        sample, cut = found
        whole = sample.case().call.reference()
        for part in cut:
            for ours, kind, all_of_it in zip(part.call.reference(), part.call.result_types, whole, strict=True):
                if hasattr(kind, "dtype"):
                    taken = np.asarray(all_of_it)
                    taken = taken[(*[slice(None)] * (part.axis % taken.ndim), part.rows)]
                    np.testing.assert_allclose(
                        np.asarray(ours, float), taken.astype(float), 1e-9, 1e-12, err_msg=part.call.id
                    )


def test_bits() -> None:
    a = np.array([1.0, np.nan, -0.0], np.float32)
    other = a.copy()
    other.view(np.uint32)[1] ^= 1
    assert same((a,), (other,)), "one NaN is as good as another"
    assert digest((a,)) == digest((other,))
    assert "at [2] -0.0 against 0.0" in str(difference((a,), (np.abs(a),)))
    assert digest((a,)) != digest((np.abs(a),))
    assert "float32[3] against float64[3]" in str(difference((a,), (a.astype(np.float64),)))
    assert difference((a,), ()) == "1 results against 0"
