"""Which calls compute with unsigned integers wider than a byte: torch holds them and computes with none."""

from __future__ import annotations

from typing import Any

from xinheng.core import ops
from xinheng.core.ir.dtype import DType, bool_
from xinheng.core.ir.graph import Node
from xinheng.core.ir.op import Op
from xinheng.core.ir.types import TensorType

OPS: tuple[Op[..., Any], ...] = (
    *(ops.add, ops.sub, ops.mul, ops.trunc_div, ops.fmod, ops.bitwise_and),
    *(ops.eq, ops.lt, ops.le, ops.maximum, ops.minimum, ops.where, ops.topk),
)
"""The ops that need kernels for them."""


def numbers(node: Node) -> list[DType]:
    """The dtypes of all operands but masks."""
    kinds = [v.type.dtype for v in node.operands if v is not None and isinstance(v.type, TensorType)]
    return [kind for kind in kinds if kind is not bool_]


def only(node: Node, kinds: frozenset[DType]) -> bool:
    """Whether all numbers that go in are of these dtypes."""
    found = numbers(node)
    return bool(found) and kinds.issuperset(found)
