"""The registry of this folder's kernels, and what the operators of MindSpore's CPU target take.

Most operators take no bfloat16 and many no float16, so that those are computed in float32 and rounded once. The
float32 forms of exp, log, tanh and sigmoid are approximations (tanh is off by 1e-4 in places, exp by its whole value
near the ends of its range); the float64 forms are exact to a rounding and are used instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms

from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import DType, bfloat16, bool_, float16, float32, int8, int16, int32, int64, uint8
from xinheng.core.ir.graph import Node, Value
from xinheng.core.ir.types import TensorType

from ..tensors import DTYPES, converted

MINDSPORE_KERNELS = KernelRegistry()

FLOATS = frozenset({float32, float16, bfloat16})
CALCULATED = FLOATS | {int64, int32, int16, int8, uint8, bool_}
"""Other dtypes can only be moved and converted."""

_NARROW = (ms.float16, ms.bfloat16)
_FLOATS = (*_NARROW, ms.float32)


def calculated(node: Node) -> bool | str:
    """The kernels here compute with the dtypes of all operands."""
    for kind in _kinds(node.operands):
        if kind not in CALCULATED:
            return f"this runtime does not compute with {kind}"
    return True


def held(node: Node) -> bool | str:
    """The runtime has the dtypes of all operands and results."""
    for kind in (*_kinds(node.operands), *_kinds(node.results)):
        if kind not in DTYPES:
            return f"this runtime has no dtype {kind}"
    return True


def _kinds(values: Sequence[Value | None]) -> list[DType]:
    types = [value.type for value in values if value is not None]
    return [kind.dtype for kind in types if isinstance(kind, TensorType)]


def wide(x: Any) -> Any:
    """A 16-bit float tensor in float32; others as they are."""
    return converted(x, ms.float32) if x.dtype in _NARROW else x


def double(x: Any) -> Any:
    """A float tensor in float64."""
    return converted(x, ms.float64)


def narrow(y: Any, like: Any) -> Any:
    """y in the dtype of another tensor."""
    return converted(y, like.dtype)


def is_float(x: Any) -> bool:
    return x.dtype in _FLOATS


_AS_BITS = {ms.bfloat16: ms.int16, ms.uint16: ms.int16, ms.uint32: ms.int32, ms.uint64: ms.int64}


def movable(x: Any) -> Any:
    """A tensor that the operators for moving take: the bits of a bfloat16 or wide unsigned one as integers."""
    kind = _AS_BITS.get(x.dtype)
    return x if kind is None else x.view(kind)


def moved(y: Any, like: Any) -> Any:
    """What was moved as `movable(like)`, in the dtype of `like` again."""
    return y.view(like.dtype) if like.dtype in _AS_BITS else y


def indexing(indices: Any) -> Any:
    """Indices of any integer dtype as the operators that gather take them."""
    return indices if indices.dtype in (ms.int32, ms.int64) else converted(indices, ms.int64)
