"""Every kernel of the CPU computes its op within the computed error bound, in every dtype that it accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.backends.cpu import CPUBackend
from xinheng.conformance.case import Sample
from xinheng.conformance.operands import Drawn, F, T
from xinheng.core.errors import GraphError
from xinheng.core.hal import DeviceSpec
from xinheng.core.ir import DTYPES, DType
from xinheng.core.ir.dtype import int32
from xinheng.core.ops import OPSET

from ...samples import EVERY, demand

CPU = CPUBackend().open(DeviceSpec.parse("cpu:0"))
KERNELS = [(op, kernel.name) for op in CPU.kernels.ops() for kernel in CPU.kernels.candidates(op)]
KINDS = ("float32", "float16", "bfloat16", "float64")


COMPOSED = {"add_rms_norm_quant", "fused_moe", "kv_norm_rope_cache", "matmul_all_reduce", "silu_and_mul_quant"}
"""Composites that torch has nothing better for than their decompositions."""


def accepted(case: Sample, kernel: str) -> list[DType]:
    """The dtypes in which a kernel takes a case; one without floats has only one."""
    kinds = [DTYPES[kind] for kind in (KINDS if case.floats else KINDS[:1])]
    return [kind for kind in kinds if CPU.kernels.select(case.in_dtype(kind).graph().nodes[-1], kernel)[0] is not None]


PAIRS = [(case, kernel, accepted(case, kernel)) for op, kernel in KERNELS for case in EVERY if case.op == op]
TRIALS = [pytest.param(*pair, id=f"{pair[1]}-{pair[0].id}") for pair in PAIRS if pair[2]]


def test_every_kernel_has_cases() -> None:
    tried = {kernel for _, kernel, kinds in PAIRS if kinds}
    # those of numpy are for dtypes that no case is in; tests/backends/cpu/test_unsigned.py has them all
    assert [kernel for _, kernel in KERNELS if kernel not in tried and not kernel.startswith("numpy_")] == []


def test_every_op_has_a_torch_kernel() -> None:
    assert {op for op, kernel in KERNELS if kernel == f"torch_{op}"} == set(OPSET) - COMPOSED


def test_torch_kernels_take_the_usual_floats() -> None:
    for case, kernel, kinds in PAIRS:
        if kernel == f"torch_{case.op}" and case.floats:
            assert len(kinds) == len(KINDS), f"{kernel} refuses {case.id}"


@pytest.mark.parametrize(("case", "kernel", "kinds"), TRIALS)
def test_kernel_is_within_its_bound(case: Sample, kernel: str, kinds: list[DType]) -> None:
    for kind in kinds:
        demand(case, kind, CPU, kernel)


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in EVERY if OPSET[c.op].composite])
def test_decomposition_is_within_the_bound(case: Sample) -> None:
    for kind in KINDS if case.floats else KINDS[:1]:
        demand(case, DTYPES[kind], CPU, "decompose")


def in_integers(case: Sample, kind: DType) -> Sample:
    """The case with small integers of `kind` in place of floats and of int32, positive ones where they divide."""
    operands: list[Any] = []
    least = 1 if case.op in ("fmod", "trunc_div") else 0
    for x in case.operands:
        x = F(x.values((case.id,), "normal")) if isinstance(x, Drawn) else x
        values = isinstance(x, F) or (isinstance(x, T) and x.dtype is int32)
        operands.append(T(np.asarray(np.abs(np.rint(np.nan_to_num(x.data))) % 3 + least), kind) if values else x)
    return Sample(case.op, case.label, tuple(operands), case.attributes, case.special)


SIMPLE = [
    case
    for case in EVERY
    if not case.special
    and any(isinstance(x, F | Drawn) for x in case.operands)
    and all(isinstance(x, F | T | Drawn) for x in case.operands)
]
RARE = [kind for kind in DTYPES.values() if kind.name not in KINDS]


@pytest.mark.parametrize("kind", RARE, ids=str)
def test_rare_dtypes_are_computed_or_refused(kind: DType) -> None:
    computed = refused = 0
    for case in SIMPLE:
        variant = case if kind.is_float else in_integers(case, kind)
        try:
            node = variant.in_dtype(kind).graph().nodes[-1]
        except GraphError:
            continue
        kernel, reasons = CPU.kernels.select(node, f"torch_{case.op}")
        if kernel is None:
            assert all(str(kind) in r.reason for r in reasons if r.kernel.startswith("torch"))
            refused += 1
        else:
            demand(variant, kind, CPU, kernel.name)
            computed += 1
    assert computed + refused > 40
    assert (computed > 0) == (kind in CPU.capabilities.dtypes)
