"""Kernels of unsigned integers that torch holds but does not compute with: numpy does, on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from xinheng.core import ops
from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import DType, bool_, uint16, uint32, uint64
from xinheng.core.ir.graph import Node
from xinheng.core.ir.op import Op
from xinheng.core.ir.types import TensorType

WIDE = frozenset({uint16, uint32, uint64})
OPS: tuple[Op[..., Any], ...] = (
    *(ops.add, ops.sub, ops.mul, ops.trunc_div, ops.fmod, ops.bitwise_and),
    *(ops.eq, ops.lt, ops.le, ops.maximum, ops.minimum, ops.where, ops.topk),
)


class UnsignedKernel:
    """Runs an op by its reference, which on integers is exact."""

    def __init__(self, op: Op[..., Any]) -> None:
        self._op = op

    def plan(self, node: Node, bounds: Mapping[str, int]) -> Callable[..., Any]:
        """A function on tensors; a constant comes as a Python number."""
        kind = numbers(node)[0].numpy

        def run(*operands: Any, **attributes: Any) -> Any:
            arrays = [x.numpy() if isinstance(x, torch.Tensor) else np.asarray(x, kind) for x in operands]
            with np.errstate(all="ignore"):
                made = self._op.reference(*arrays, **attributes)
            return tuple(map(_tensor, made)) if isinstance(made, tuple) else _tensor(made)

        return run


def _tensor(made: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(made))


def wide(node: Node) -> bool | str:
    """Whether all numbers that go in are unsigned integers of more than 8 bits."""
    kinds = numbers(node)
    return (bool(kinds) and WIDE.issuperset(kinds)) or "takes unsigned integers of 16 bits and more only"


def numbers(node: Node) -> list[DType]:
    """The dtypes of all operands but masks."""
    kinds = [v.type.dtype for v in node.operands if v is not None and isinstance(v.type, TensorType)]
    return [kind for kind in kinds if kind is not bool_]


def register_unsigned(registry: KernelRegistry) -> None:
    """Enter these kernels, behind all others."""
    for op in OPS:
        registry.register(op, name=f"numpy_{op.name}", when=wide, priority=-1)(UnsignedKernel(op))
