"""Division with a whole quotient, and its remainder."""

from __future__ import annotations

import numpy as np

from ..ir.op import Tensor, Tolerance, op, require
from ..ir.types import TensorType
from .elementwise import calculated


@op(tolerance=Tolerance.EXACT)
def fmod(a: Tensor, b: Tensor) -> Tensor:
    """a - b * trunc(a / b) without rounding, with the sign of a, as in C; NaN at b = 0, for integers undefined."""
    return np.fmod(a, b)


fmod.infer(calculated)


@op(tolerance=Tolerance.EXACT)
def trunc_div(a: Tensor, b: Tensor) -> Tensor:
    """The quotient of two integers, rounded towards zero as in C; undefined at b = 0."""
    return (a - np.fmod(a, b)) // b


@trunc_div.infer
def _(a: TensorType, b: TensorType) -> TensorType:
    require(a.dtype.is_integer, f"trunc_div is for integers, not {a.dtype}; use div")
    return calculated(a, b)
