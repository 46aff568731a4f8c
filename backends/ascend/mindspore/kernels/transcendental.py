"""Kernels of the rarer transcendental functions, in float64 and rounded once; -0 stays -0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import ops as msops

from xinheng.core import ops

from .registry import MINDSPORE_KERNELS, calculated, double, narrow

_NEAR_ZERO = 2.0**-10
"""Below this MindSpore's functions lose digits (its expm1 and log1p are off by 1e-16, whatever the result); the series
have more than float32 holds."""


def _unary(op: Any, function: Callable[[Any], Any], series: tuple[float, ...]) -> None:
    """Register a function whose quotient by x has a power series around 0, given by its first coefficients."""

    def kernel(x: Any) -> Any:
        wider = double(x)
        quotient: Any = series[-1]
        for coefficient in reversed(series[:-1]):
            quotient = quotient * wider + coefficient
        near = msops.less(msops.abs(wider), _NEAR_ZERO)
        return narrow(msops.select(near, wider * quotient, function(wider)), x)

    MINDSPORE_KERNELS.register(op, name=f"mindspore_{op.name}", when=calculated)(kernel)


_unary(ops.atan, msops.atan, (1.0, 0.0, -1 / 3, 0.0, 1 / 5))
_unary(ops.log1p, msops.log1p, (1.0, -1 / 2, 1 / 3, -1 / 4))
_unary(ops.expm1, msops.expm1, (1.0, 1 / 2, 1 / 6, 1 / 24))
