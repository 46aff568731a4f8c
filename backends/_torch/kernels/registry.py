"""The registry that the kernels of this folder enter themselves in, and which dtypes torch computes with."""

from __future__ import annotations

from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import bfloat16, bool_, float16, float32, float64, int8, int16, int32, int64, uint8
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import TensorType

from ..handles import DTYPES

TORCH_KERNELS = KernelRegistry()

FLOATS = frozenset({float64, float32, float16, bfloat16})
CALCULATED = FLOATS | {int64, int32, int16, int8, uint8, bool_}
"""Other dtypes can only be moved and converted by torch."""


def calculated(node: Node) -> bool | str:
    """Torch computes with the dtypes of all operands."""
    for value in node.operands:
        if value is not None and isinstance(value.type, TensorType) and value.dtype not in CALCULATED:
            return f"torch does not compute with {value.dtype}"
    return True


def held(node: Node) -> bool | str:
    """Torch has the dtype of the result."""
    kind = node.results[0].dtype
    return kind in DTYPES or f"torch has no dtype {kind}"
