"""The registry that the kernels of this folder enter themselves in, and which dtypes torch computes with."""

from __future__ import annotations

from collections.abc import Sequence

from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import DType, bfloat16, bool_, float16, float32, float64, int8, int16, int32, int64, uint8
from xinheng.core.ir.graph import Node, Value
from xinheng.core.ir.types import StateType, TensorType

from ..handles import DTYPES

TORCH_KERNELS = KernelRegistry()

FLOATS = frozenset({float64, float32, float16, bfloat16})
CALCULATED = FLOATS | {int64, int32, int16, int8, uint8, bool_}
"""Other dtypes can only be moved and converted by torch."""


def calculated(node: Node) -> bool | str:
    """Torch computes with the dtypes of all operands."""
    for kind in _kinds(node.operands):
        if kind not in CALCULATED:
            return f"torch does not compute with {kind}"
    return True


def held(node: Node) -> bool | str:
    """Torch has the dtypes of all operands and results."""
    for kind in (*_kinds(node.operands), *_kinds(node.results)):
        if kind not in DTYPES:
            return f"torch has no dtype {kind}"
    return True


def cache_type(node: Node) -> StateType:
    """The type of the cache that a node writes or reads."""
    cache = node.operand("cache")
    assert cache is not None and isinstance(cache.type, StateType)
    return cache.type


def _kinds(values: Sequence[Value | None]) -> list[DType]:
    types = [value.type for value in values if value is not None]
    return [kind.dtype for kind in types if isinstance(kind, TensorType)]
