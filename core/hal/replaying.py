"""What devices that record runs to replay them have in common: an executable in front of one that runs its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from ..ir.graph import Graph
from ..receipt import Receipt
from .device import Buffer, Device, StateSpace
from .executable import KernelBound, KernelExecutable
from .weight import WeightSource


class ReplayingExecutable:
    """The part of an `Executable` that the one behind it has: `plain` runs kernels one by one; `bind` is up to the
    subclass."""

    def __init__(self, plain: KernelExecutable, *notes: str) -> None:
        """`notes` go into the receipt behind those of `plain`."""
        self.graph: Graph = plain.graph
        self.device: Device = plain.device
        self.receipt: Receipt = replace(plain.receipt, notes=(*plain.receipt.notes, *notes))
        self.plain = plain

    def prepare(self, name: str, source: WeightSource | NDArray[Any]) -> Buffer:
        buffer = self.plain.prepare(name, source)
        self.receipt = replace(self.receipt, layouts=self.plain.receipt.layouts)
        return buffer

    def allocate_state(self, space: StateSpace | Mapping[str, StateSpace]) -> dict[str, Buffer]:
        return self.plain.allocate_state(space)

    def bound(self, buffers: Mapping[str, Buffer]) -> tuple[KernelBound, dict[str, Buffer]]:
        """`plain` with its parameters and states in place, and the inputs that stay the same: a record copies them."""
        fixed = {v.name: buffers[v.name] for v in self.graph.inputs if v.name in buffers}
        return self.plain.bind({name: buffer for name, buffer in buffers.items() if name not in fixed}), fixed
