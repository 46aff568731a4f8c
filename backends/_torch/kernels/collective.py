"""Collectives: an exchange between the ranks, then arithmetic in the order of ranks, so that all get the same bits."""

from __future__ import annotations

import torch

from xinheng.core import ops
from xinheng.core.hal import Device, KernelRegistry

from .elementwise import wide
from .registry import calculated, held

Tensor = torch.Tensor


def _total(parts: list[Tensor], kind: torch.dtype) -> Tensor:
    total = wide(parts[0])
    for part in parts[1:]:
        total = total + wide(part)
    return total.to(kind)


def register_collectives(registry: KernelRegistry, device: Device) -> None:
    """Enter the kernels of collectives, which reach the other ranks through `device`."""

    def exchange(x: Tensor, group: str, size: int, what: str) -> list[Tensor]:
        return [x] if size == 1 else device.communicator(group).exchange(x, what)

    def piece(x: Tensor, axis: int, group: str, size: int) -> Tensor:
        rank = 0 if size == 1 else device.communicator(group).rank
        width = x.shape[axis] // size
        return torch.narrow(x, axis, rank * width, width)

    @registry.register(ops.all_reduce, name="torch_all_reduce", when=calculated)
    def all_reduce(x: Tensor, *, group: str, size: int, reduction: str = "sum") -> Tensor:
        parts = exchange(x, group, size, "all_reduce")
        return torch.stack(parts).amax(0) if reduction == "max" else _total(parts, x.dtype)

    @registry.register(ops.all_gather, name="torch_all_gather", when=held)
    def all_gather(x: Tensor, *, axis: int, group: str, size: int) -> Tensor:
        return torch.cat(exchange(x, group, size, "all_gather"), dim=axis)

    @registry.register(ops.reduce_scatter, name="torch_reduce_scatter", when=calculated)
    def reduce_scatter(x: Tensor, *, axis: int, group: str, size: int) -> Tensor:
        parts = exchange(x, group, size, "reduce_scatter")
        return _total([piece(part, axis, group, size) for part in parts], x.dtype)

    @registry.register(ops.all_to_all, name="torch_all_to_all", when=held)
    def all_to_all(x: Tensor, *, group: str, size: int) -> Tensor:
        parts = exchange(x, group, size, "all_to_all")
        return torch.cat([piece(part, 0, group, size) for part in parts])
