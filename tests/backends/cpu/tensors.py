"""Kernels of this device as functions of tensors: tests of many element types are shortest in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch

from xinheng.backends._torch import TorchPagedKV, TorchPagedLatent, TorchWeight
from xinheng.backends._torch.handles import array_of
from xinheng.backends.cpu.handles import HostWeight, HostWeightPart
from xinheng.backends.cpu.torch_kernels import tensor_of
from xinheng.core.ops import KVPages, LatentPages

STATES = {TorchPagedKV: KVPages, TorchPagedLatent: LatentPages}


def on_tensors(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that takes and gives tensors; an operand that it returns is the one it was given."""

    def run(*operands: Any, **attributes: Any) -> Any:
        given = [here(x) for x in operands]
        made = kernel(*given, **{name: here(x) for name, x in attributes.items()})
        if isinstance(made, tuple) and not hasattr(made, "_fields"):
            return tuple(map(tensor_of, made))
        same = [operand for operand, x in zip(operands, given, strict=True) if x is made]
        return same[0] if same else tensor_of(made)

    return run


def here(x: Any) -> Any:
    """A tensor, weight or cache of torch as this device has it, in the same memory."""
    if isinstance(x, torch.Tensor):
        return array_of(x)
    if isinstance(x, TorchWeight):
        parts = (HostWeightPart(part.scheme, part.rows, array_of(part.data)) for part in x.parts)
        return HostWeight(x.shape, tuple(parts), x.layout)
    if type(x) in STATES:
        return STATES[type(x)](*(array_of(getattr(x, field.name)) for field in fields(x)))
    return x
