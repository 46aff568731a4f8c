"""Transcendental functions beyond those of transformer layers; the others follow from these by short formulas."""

from __future__ import annotations

import numpy as np

from ..ir.op import Tensor, Tolerance, op
from .elementwise import floating


@op(tolerance=Tolerance.TRANSCENDENTAL)
def atan(x: Tensor) -> Tensor:
    """The angle in radians, from -pi/2 to pi/2, whose tangent is x."""
    return np.arctan(x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def log1p(x: Tensor) -> Tensor:
    """log(1 + x), exact also where x is small; -inf at -1, NaN below."""
    return np.log1p(x)


@op(tolerance=Tolerance.TRANSCENDENTAL)
def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, exact also where x is small."""
    return np.expm1(x)


for _op in (atan, log1p, expm1):
    _op.infer(floating)
