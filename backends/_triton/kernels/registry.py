"""The registry that the kernels of this folder enter themselves in; torch has what is missing."""

from __future__ import annotations

from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ir.graph import Node
from xinheng.core.ir.types import StateType

from ..._torch import TORCH_KERNELS

TRITON_KERNELS = KernelRegistry(TORCH_KERNELS)

FLOATS = frozenset({float32, float16, bfloat16})
"""What these kernels read and write; they compute in float32."""


def readable(node: Node) -> bool | str:
    """The kernels read caches of this scheme."""
    cache = node.operand("cache")
    if cache is None or not isinstance(cache.type, StateType):
        return "reads caches only"
    known = cache.type.quantized or cache.type["scheme"] in {kind.name for kind in FLOATS}
    return known or f"reads caches of float32, float16, bfloat16 and int8, not {cache.type['scheme']}"
