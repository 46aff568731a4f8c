"""Kernels of the rarer transcendental functions, in float64 and rounded once; -0 stays -0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import ops as msops

from xinheng.core import ops

from .registry import MINDSPORE_KERNELS, calculated, double, narrow


def _unary(op: Any, function: Callable[[Any], Any]) -> None:
    def kernel(x: Any) -> Any:
        wider = double(x)
        # MindSpore makes 0 of -0
        return narrow(msops.select(msops.equal(wider, 0), wider, function(wider)), x)

    MINDSPORE_KERNELS.register(op, name=f"mindspore_{op.name}", when=calculated)(kernel)


for _op, _function in ((ops.atan, msops.atan), (ops.log1p, msops.log1p), (ops.expm1, msops.expm1)):
    _unary(_op, _function)
