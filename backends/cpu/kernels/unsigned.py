"""Kernels of unsigned integers that torch holds but does not compute with: numpy does, on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import uint16, uint32, uint64
from xinheng.core.ir.graph import Node
from xinheng.core.ir.op import Op

from ..._torch.kernels.unsigned import OPS, numbers, only

WIDE = frozenset({uint16, uint32, uint64})


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
    return only(node, WIDE) or "takes unsigned integers of 16 bits and more only"


def register_unsigned(registry: KernelRegistry) -> None:
    """Enter these kernels, behind all others."""
    for op in OPS:
        registry.register(op, name=f"numpy_{op.name}", when=wide, priority=-1)(UnsignedKernel(op))
