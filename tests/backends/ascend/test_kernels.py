"""Every kernel of the MindSpore runtime computes its op within the computed error bound, in every dtype it accepts."""

from __future__ import annotations

import pytest

from xinheng.backends.ascend import AscendBackend
from xinheng.conformance.bounds import Rules
from xinheng.core.hal import DeviceSpec
from xinheng.core.ir import DTYPES, DType

from ...op_cases import CASES, Case
from ...op_cases.judge import judge

DEVICE = AscendBackend().open(DeviceSpec.parse("ascend:cpu@mindspore"))
KERNELS = [(op, kernel.name) for op in DEVICE.kernels.ops() for kernel in DEVICE.kernels.candidates(op)]
FLUSHING = Rules(flush=True)
"""Threads that MindSpore computes on take subnormal float32 numbers for zero; the choice of the thread is its own."""
KINDS = ("float32", "float16", "bfloat16")


def accepted(case: Case, kind: DType, kernel: str) -> bool:
    node = case.in_dtype(kind).graph().nodes[0]
    return DEVICE.kernels.select(node, kernel)[0] is not None


def trials() -> list[tuple[Case, DType, str]]:
    """Each case with each kernel of its op in each dtype that the kernel takes; without floats once."""
    pairs = [(case, kernel) for op, kernel in KERNELS for case in CASES if case.op == op]
    every = [(c, DTYPES[kind], k) for c, k in pairs for kind in (KINDS if c.floats else KINDS[:1])]
    return [trial for trial in every if accepted(*trial)]


TRIALS = trials()


def test_every_kernel_has_cases_in_every_dtype() -> None:
    tried = {(kernel, kind.name) for case, kind, kernel in TRIALS if case.floats}
    floats = {kernel for _, kernel in KERNELS for case, _, k in TRIALS if k == kernel and case.floats}
    assert {kernel for *_, kernel in TRIALS} == {kernel for _, kernel in KERNELS}
    assert {(kernel, kind) for kernel in floats for kind in KINDS} == tried


def test_float64_is_refused() -> None:
    case = next(c for c in CASES if c.op == "rms_norm")
    assert not accepted(case, DTYPES["float64"], "mindspore_rms_norm")


@pytest.mark.parametrize(("case", "kind", "kernel"), [pytest.param(*t, id=f"{t[2]}-{t[0].id}-{t[1]}") for t in TRIALS])
def test_kernel_is_within_its_bound(case: Case, kind: DType, kernel: str) -> None:
    judge(case, kind, DEVICE, kernel, FLUSHING if case.special else None)
