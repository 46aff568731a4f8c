"""Kernels of unsigned integers that torch holds but does not compute with, by way of signed ones twice as wide."""

from __future__ import annotations

from typing import Any

import torch

from xinheng.core.hal import KernelRegistry
from xinheng.core.ir.dtype import uint16, uint32
from xinheng.core.ir.graph import Node

from .._torch import TORCH_KERNELS
from .._torch.kernels.unsigned import OPS, only

WIDE = frozenset({uint16, uint32})
_HELD = (torch.uint16, torch.uint32)


def unsigned(node: Node) -> bool | str:
    """Whether all numbers that go in are unsigned integers of 16 or 32 bits."""
    return only(node, WIDE) or "takes unsigned integers of 16 and 32 bits only"


def _narrow(x: Any, kind: torch.dtype) -> Any:
    """Results in the dtype of the operands; masks and places as they are."""
    return x.to(kind) if isinstance(x, torch.Tensor) and x.dtype is torch.int64 else x


def register_unsigned(registry: KernelRegistry) -> None:
    """Enter these kernels, behind all others."""
    for op in OPS:
        (inner,) = (k.function for k in TORCH_KERNELS.candidates(op.name) if k.name == f"torch_{op.name}")
        registry.register(op, name=f"torch_wide_{op.name}", when=unsigned, priority=-1)(_Widened(inner))


class _Widened:
    """A kernel of torch on operands in int64, which holds all results but overflows, and their lowest bits."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def plan(self, node: Node, bounds: Any) -> Any:
        """A function for one node."""
        inner = self._inner

        def run(*operands: Any, **attributes: Any) -> Any:
            kind = next(x.dtype for x in operands if isinstance(x, torch.Tensor) and x.dtype in _HELD)
            wide = [x.to(torch.int64) if isinstance(x, torch.Tensor) and x.dtype in _HELD else x for x in operands]
            made = inner(*wide, **attributes)
            return tuple(_narrow(x, kind) for x in made) if isinstance(made, tuple) else _narrow(made, kind)

        return run
