"""What the conditions of kernels are made of."""

from __future__ import annotations

from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ir.graph import Node, Value
from xinheng.core.ir.types import TensorType, WeightType

HALVES = frozenset({float16, bfloat16})
FLOATS = HALVES | {float32}


def filled(*values: Value | None) -> bool:
    """Whether no tensor is known to be empty; most operators of the vendor refuse empty ones."""
    shapes = (v.type.shape for v in values if v is not None and isinstance(v.type, TensorType))
    return all(dim != 0 for shape in shapes for dim in shape)


def shaped(node: Node, operand: str) -> tuple[object, ...]:
    """The sizes of an operand, numbers and symbols."""
    value = node.operand(operand)
    assert value is not None
    return tuple(value.shape)


def weight_of(node: Node, operand: str = "weight") -> WeightType:
    """The type of a weight."""
    value = node.operand(operand)
    assert value is not None and isinstance(value.type, WeightType)
    return value.type
