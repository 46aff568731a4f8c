"""D1 and the half of D2 that one process can see: a repeated call, also after other work, gives the same bits."""

from __future__ import annotations

import time

import numpy as np

from xinheng.core.ir.dtype import float32

from ..draw import stream
from .bits import difference
from .experiment import Experiment, Finding, blamed

ENOUGH = 2.0
"""Seconds after which a call has been repeated often enough."""
OFTEN = 8
"""Runs that tell chance from what was found otherwise."""
_CHURN = ((7, 33), (1024,), (129, 65), (1,), (4096, 3))


def repeated(experiment: Experiment, times: int) -> Finding | None:
    """Whether further runs on the same numbers give the bits of the first.

    A difference that a newly compiled run repeats exactly comes from something left over (`stale`), else from chance
    (`repeat`).
    """
    began = time.perf_counter()
    for number in range(2, times + 2):
        text = difference(experiment.run(), experiment.first)
        if text is not None:
            return _named(experiment, number, text)
        if time.perf_counter() - began > ENOUGH:
            break
    return None


def _named(experiment: Experiment, number: int, text: str) -> Finding:
    if all(_happens_anew(experiment, number, text) for _ in range(2)):
        message = f"run {number} on the same numbers differs from run 1, in each process of this kind: {text}"
        return Finding("stale", message)
    return Finding("repeat", f"run {number} on the same numbers differs from run 1: {text}")


def _happens_anew(experiment: Experiment, number: int, text: str) -> bool:
    """Whether so many runs of a newly compiled executable end in the same difference, and the first has none."""
    anew = experiment.prepare(experiment.case.call)
    runs = [difference(experiment.run(anew), experiment.first) for _ in range(number)]
    return runs[0] is None and runs[-1] == text


def unsteady(experiment: Experiment) -> Finding | None:
    """Whether bits change from run to run without any reason: then other comparisons of bits say nothing."""
    for _ in range(OFTEN):
        text = difference(experiment.run(), experiment.first)
        if text is not None:
            return Finding("repeat", f"a run on the same numbers differs from run 1: {text}")
    return None


def after_churn(experiment: Experiment) -> Finding | None:
    """Whether the bits are still those of the first run after memory was taken, filled and given back."""
    device = experiment.device
    with blamed(device, "failed to take memory"):
        numbers = stream("churn", experiment.case.id)
        taken = [device.upload(numbers.normal(size=shape).astype(np.float32), float32) for shape in _CHURN]
        del taken[::2]
    trial = experiment.prepare(experiment.case.call)
    text = difference(experiment.run(trial), experiment.first)
    if text is None:
        return None
    return Finding("process", f"after other work on the device, compiled anew, the call gave other bits: {text}")
