"""Weights of a dtype that a device lacks, converted when they are prepared, with a check that they fit."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError
from xinheng.core.hal import WeightSource
from xinheng.core.ir.dtype import DType, bfloat16, cast_to, float16, float32, float64, round_to
from xinheng.core.schemes import scheme

INSTEAD = {bfloat16: (float16, float32), float64: (float32,)}
"""What stands in for a dtype that a device lacks: the first that holds all values exactly, or else the last."""


def foreign_dtype(source: WeightSource, dtypes: Container[DType]) -> DType | None:
    """A dtype of dense parts of a weight that is not among `dtypes`, None if there is none."""
    kinds = (scheme(part.scheme).dense for part in source.parts)
    return next((kind for kind in kinds if kind is not None and kind not in dtypes), None)


def converted(source: WeightSource, kind: DType, spec: str) -> tuple[NDArray[Any], str]:
    """The values of a weight that is stored in `kind` in another dtype, each rounded once, and a phrase that says so.

    Raises:
        DeviceError: a value would become infinite, or no dtype stands in for `kind`.
    """
    targets = INSTEAD.get(kind)
    if targets is None:
        raise DeviceError(f"{spec} has no {kind}, and weight {source.name!r} is stored in it; convert the checkpoint")
    wide = source.unpack(np.float64)
    target = next((t for t in targets if np.array_equal(round_to(wide, t), wide, equal_nan=True)), targets[-1])
    made = cast_to(wide, target)
    lost = np.isfinite(wide) & ~np.isfinite(made.astype(np.float64))
    if lost.any():
        raise DeviceError(
            f"{spec} has no {kind}, and weight {source.name!r} has {int(lost.sum())} values such as "
            f"{wide[lost].flat[0]:g} that do not fit in {target}; use a device with {kind}"
        )
    return made, f"converted from {kind} to {target}"
