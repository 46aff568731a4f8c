"""Division with a whole quotient, and its remainder."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np

from xinheng.core import ops

from ..tensors import NAMES, to_array, to_tensor
from .registry import MINDSPORE_KERNELS, calculated


def _numbers(a: Any, b: Any) -> tuple[Any, Any, Any]:
    """Both operands as arrays, floats in float64, and the dtype of the result."""
    kind = NAMES[(a if isinstance(a, ms.Tensor) else b).dtype]
    working = np.float64 if kind.is_float else kind.numpy
    arrays = [(to_array(x) if isinstance(x, ms.Tensor) else np.asarray(x)).astype(working) for x in (a, b)]
    return arrays[0], arrays[1], kind


@MINDSPORE_KERNELS.register(ops.fmod, name="mindspore_fmod", when=calculated)
def fmod(a: Any, b: Any) -> Any:
    # MindSpore's Mod computes a - b * trunc(a / b), which is not exact; the host's fmod is
    x, y, kind = _numbers(a, b)
    with np.errstate(all="ignore"):
        return to_tensor(np.asarray(np.fmod(x, y)), kind)


@MINDSPORE_KERNELS.register(ops.trunc_div, name="mindspore_trunc_div", when=calculated)
def trunc_div(a: Any, b: Any) -> Any:
    x, y, kind = _numbers(a, b)
    with np.errstate(all="ignore"):
        return to_tensor(np.asarray((x - np.fmod(x, y)) // y).astype(kind.numpy), kind)
