"""What kernels do to memory that is not theirs to write, and results that they leave unwritten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.hal import MemoryGuard, canary
from xinheng.core.ir.dtype import DTYPES

from .bits import difference, flat
from .experiment import Experiment, Finding, Results, blamed


def run_guarded(experiment: Experiment, guard: MemoryGuard | None) -> Finding | None:
    """Run the first time, on buffers of the inputs; what happened to these, and to the memory around all tensors."""
    trial, device = experiment.trial, experiment.device
    with blamed(device, "failed to take inputs"):
        given = {name: np.array(array) for name, array in trial.arrays().items()}
        buffers = trial.upload()
    experiment.first = experiment.run(inputs=buffers)
    with blamed(device, "failed to tell of its memory"):
        violations = guard.violations() if guard is not None else []
        kept = {name: device.download(b) for name, b in buffers.items() if not _on_host(device, b)}
    if violations:
        return Finding("out-of-bounds", "; ".join(violations[:3]))
    return _changed(given, kept)


def _on_host(device: Any, buffer: Any) -> bool:
    """Whether an input was given as an array, because the device has no such tensors."""
    return isinstance(buffer, np.ndarray) and buffer.dtype.name not in {d.name for d in device.capabilities.dtypes}


def _changed(given: Mapping[str, NDArray[Any]], kept: Mapping[str, NDArray[Any]]) -> Finding | None:
    for name, array in kept.items():
        text = difference((array,), (given[name],))
        if text is not None:
            return Finding("inputs-changed", f"the call changed its input {name}: {text.replace('the result', name)}")
    return None


def unwritten(made: Results) -> Finding | None:
    """Results that still hold the pattern which guarded memory starts with."""
    for i, array in enumerate(flat(made)):
        left = canaries(array)
        if left:
            return Finding("unwritten", f"{left} of {array.size} elements of result {i} were never written")
    return None


def canaries(array: NDArray[Any]) -> int:
    """How many elements have exactly the bits of the canary pattern."""
    kind = DTYPES.get(array.dtype.name)
    if kind is None or (array.itemsize == 1 and not kind.is_float):
        return 0  # no pattern of one byte is improbable
    rows = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    return int(np.count_nonzero((rows == np.frombuffer(canary(kind), np.uint8)).all(axis=1)))
