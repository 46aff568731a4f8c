"""Every torch kernel computes its op within the computed error bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xinheng.backends.cpu import CPUBackend
from xinheng.conformance.bounds import Rules
from xinheng.core.errors import UnsupportedOp
from xinheng.core.hal import Device, DeviceSpec, Kernel, ReferenceDevice
from xinheng.core.ir import DTYPES
from xinheng.core.ir.dtype import float32

from ...op_cases import CASES, Case
from ...op_cases.judge import judge

CPU = CPUBackend().open(DeviceSpec.parse("cpu:0"))
KERNELS = [(op, kernel) for op in CPU.kernels.ops() for kernel in CPU.kernels.candidates(op)]
KINDS = ("float32", "float16", "bfloat16", "float64")


def trials() -> list[Any]:
    found = []
    for op, kernel in KERNELS:
        for case in (c for c in CASES if c.op == op):
            for kind in KINDS if case.floats else KINDS[:1]:
                node = case.in_dtype(DTYPES[kind]).graph().nodes[0]
                if CPU.kernels.select(node, kernel.name)[0] is not None:
                    found.append(pytest.param(case, kind, kernel.name, id=f"{kernel.name}-{case.id}-{kind}"))
    return found


TRIALS = trials()


def test_every_kernel_has_cases() -> None:
    tried = {p.values[2] for p in TRIALS}
    assert [kernel.name for _, kernel in KERNELS if kernel.name not in tried] == []


@pytest.mark.parametrize(("case", "kind", "kernel"), TRIALS)
def test_kernel_is_within_its_bound(case: Case, kind: str, kernel: str) -> None:
    judge(case, DTYPES[kind], CPU, kernel)
