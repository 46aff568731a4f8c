"""What tests of kernels share: the small samples of the conformance suite, and the demand that a kernel computes one.

A run of the suite takes all samples in all their distributions; here the first one is enough.
"""

from __future__ import annotations

import math

from xinheng.conformance.bounds import Rules
from xinheng.conformance.cases import SAMPLES, Sample, Tier
from xinheng.conformance.judge import judge
from xinheng.conformance.operands import shape_of
from xinheng.conformance.trial import Trial
from xinheng.core.hal import Device, Numerics
from xinheng.core.ir import DType

MOST = 500
"""How many elements an operand of a small sample has."""


def size(sample: Sample) -> int:
    """How many elements its largest operand has."""
    shapes = [shape for x in sample.operands if (shape := shape_of(x)) is not None]
    return max(map(math.prod, shapes), default=0)


def small(samples: list[Sample]) -> list[Sample]:
    """Those of the default tier whose operands are small."""
    return [sample for sample in samples if sample.tier is Tier.DEFAULT and size(sample) <= MOST]


EVERY: list[Sample] = [sample for samples in SAMPLES.values() for sample in small(samples)]
"""The small samples of all ops."""


def demand(sample: Sample, kind: DType, device: Device, kernel: str, rules: Rules | None = None) -> None:
    """Run a sample by one kernel of a device, or by "decompose", and demand that each element lies within its bound."""
    overrides = {sample.op: kernel if kernel == "decompose" else f"@{kernel}"}
    case = sample.case(kind)
    made = Trial(case.call, device, Numerics(overrides=overrides)).run()
    arithmetic = device.capabilities.arithmetic
    declared = None if arithmetic is None else arithmetic.programs
    found = judge(case.call, made, rules or Rules.of(None, case.kind, case.structured), declared)
    assert found.ok, f"{case.id}: {found}"
    assert sample.special or not found.vacuous, f"{case.id}: bound is useless: {found}"
