"""Correct kernels, which no case may reject: every case of the suite, and as many newly drawn ones as wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xinheng.core.ir.dtype import DTYPES, bfloat16, float16, float32, round_to
from xinheng.core.ir.op import Tolerance
from xinheng.core.ops import OPSET

from ..case import SAMPLES, Case, Sample, Tier
from ..draw import stream
from ..layout import Layout
from ..programs import PROGRAMS
from .simulated import ORDERS, SEQUENTIAL, correct
from .standard import Standard
from .variants import VARIANTS

FLOATS = (float32, float16, bfloat16)
UNSUMMED = frozenset({Tolerance.EXACT, Tolerance.ELEMENTWISE, Tolerance.TRANSCENDENTAL})
"""Classes of ops that add nothing up, so that all orders are one."""
FIRST = 1000
"""The first seed that is drawn; smaller ones belong to the cases of the suite."""


@dataclass(frozen=True)
class Heard:
    """Runs of correct kernels.

    Attributes:
        seeds: how many times operands were drawn.
        runs: how many results were judged.
        rejected: the case and the kernel of each that was rejected.
    """

    seeds: int = 0
    runs: int = 0
    rejected: tuple[str, ...] = ()

    def __add__(self, other: Heard) -> Heard:
        return Heard(self.seeds + other.seeds, self.runs + other.runs, self.rejected + other.rejected)


def kernels(standard: Standard) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The results of correct kernels of a call: all orders, and all other programs in one order each."""
    call, summed = standard.call, OPSET[standard.call.op].tolerance not in UNSUMMED
    for order in ORDERS if summed else (SEQUENTIAL,):
        yield order.name, correct(call, order)
    others = {} if standard.special else VARIANTS.get(call.op, {})
    for i, (name, program) in enumerate(others.items()):
        yield name, correct(call, ORDERS[i % len(ORDERS)], program)
    for i, (name, rounding) in enumerate(PROGRAMS[call.op].items()):
        if rounding.points and not rounding.declared and rounding.differs(call, standard.rules):
            yield name, correct(call, ORDERS[i % len(ORDERS)], points=rounding.points)


def heard(standard: Standard, seeds: int = 0) -> Heard:
    """What a case says to correct kernels."""
    runs, rejected = 0, []
    for name, made in kernels(standard):
        runs += 1
        if not standard.judge(made).ok:
            rejected.append(f"{standard.id}: {name}")
    return Heard(seeds, runs, tuple(rejected))


def family(op: str, dtype: str) -> tuple[str, str]:
    """The class of an op and a dtype family; what is no 16-bit or 32-bit float counts as other."""
    known = {kind.name for kind in FLOATS}
    return OPSET[op].tolerance.value, dtype if dtype in known else "other"


def families(ops: Sequence[str]) -> list[tuple[str, str]]:
    """The classes of ops and dtypes in which operands can be drawn."""
    found = {family(op, kind.name): None for op in ops for kind in FLOATS if any(_samples(op, kind.name))}
    return list(found)


def _samples(op: str, dtype: str) -> Iterator[Sample]:
    """Samples whose operands, or at least the uniform numbers, can be drawn anew."""
    from .. import cases as cases  # fills the table

    kind = DTYPES[dtype]
    uniform = any(operand.name == "uniform" for operand in OPSET[op].operands)
    for sample in SAMPLES.get(op, ()):
        runs = kind in sample.kinds if sample.floats else kind is (float32 if uniform else sample.own)
        usual = sample.tier == Tier.DEFAULT and sample.layout is Layout.WHOLE and not sample.special
        if usual and runs and (sample.free or uniform):
            yield sample


def drawn(ops: Sequence[str], op_class: str, dtype: str, seeds: range) -> Iterator[Standard]:
    """New cases of a class of ops, the samples of all its ops in turn, each in its distributions in turn."""
    of_class = [op for op in ops if OPSET[op].tolerance.value == op_class]
    samples = [sample for op in of_class for sample in _samples(op, dtype)]
    for seed in seeds:
        sample = samples[seed * _STEP % len(samples)]
        data = sample.data[seed // len(samples) % len(sample.data)]
        case = Case(sample, DTYPES[dtype] if sample.floats else sample.own, data, FIRST + seed)
        standard = Standard.of(case)
        yield standard if sample.free else _with_other_numbers(standard, seed)


_STEP = 7919
"""A prime, by which samples are stepped through so that neighbouring seeds are of different ops."""


def _with_other_numbers(standard: Standard, seed: int) -> Standard:
    """The same call with other uniform numbers."""
    names = [operand.name for operand in OPSET[standard.call.op].operands]
    shape = np.shape(standard.call.values[names.index("uniform")])
    return standard.having(uniform=round_to(stream("uniform", standard.id, seed).random(shape), float32))


def of_seeds(ops: Sequence[str], op_class: str, dtype: str, seeds: range) -> Heard:
    """Correct kernels of newly drawn cases."""
    return sum((heard(standard, seeds=1) for standard in drawn(ops, op_class, dtype, seeds)), Heard())
