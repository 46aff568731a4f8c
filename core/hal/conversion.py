"""Weights of a dtype that a device lacks, converted when they are prepared, with a check that they fit."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError
from ..ir.dtype import DType, bfloat16, cast_to, float16, float32, float64, round_to
from ..schemes import scheme
from .weight import WeightPart, WeightSource

INSTEAD = {bfloat16: (float16, float32), float64: (float32,)}
"""What stands in for a dtype that a device lacks: the first that holds all values exactly, or else the last."""


def converted(source: WeightSource, dtypes: Container[DType], spec: str) -> tuple[WeightSource, str]:
    """A weight without parts in a dtype of `INSTEAD` that is not in `dtypes`, and a phrase on what was converted.

    Each value is rounded once. A weight that needs no conversion comes back as it is, with an empty phrase; what else
    a device may lack, such as float8, it decodes as it does a packed scheme.

    Raises:
        DeviceError: a value would become infinite, or no dtype stands in for one that `spec` lacks.
    """
    kinds = (scheme(part.scheme).dense for part in source.parts)
    lacking = next((kind for kind in kinds if kind in INSTEAD and kind not in dtypes), None)
    if lacking is None:
        return source, ""
    targets = [kind for kind in INSTEAD[lacking] if kind in dtypes]
    if not targets:
        raise DeviceError(
            f"{spec} has no {lacking}, and weight {source.name!r} is stored in it; convert the checkpoint"
        )
    wide = source.unpack(np.float64)
    target = next((t for t in targets if np.array_equal(round_to(wide, t), wide, equal_nan=True)), targets[-1])
    made = cast_to(wide, target)
    lost = np.isfinite(wide) & ~np.isfinite(made.astype(np.float64))
    if lost.any():
        raise DeviceError(
            f"{spec} has no {lacking}, and weight {source.name!r} has {int(lost.sum())} values such as "
            f"{wide[lost].flat[0]:g} that do not fit in {target}; use a device with {lacking}"
        )
    rows = np.ascontiguousarray(made.reshape(-1, source.shape[-1])).view(np.uint8)
    part = WeightPart(target.name, len(rows), _given(rows))
    return WeightSource(source.name, source.shape, (part,)), f"converted from {lacking} to {target}"


def _given(rows: NDArray[Any]) -> Callable[[], NDArray[Any]]:
    return lambda: rows
