"""A simulated device that compiles graphs of fixed sizes only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xinheng.core.errors import DeviceError
from xinheng.core.hal import Executable, Placement
from xinheng.core.ir.graph import Graph

from .device import SimDevice


class StaticDevice(SimDevice):
    """Sizes are part of a compiled program; `core.compiler` pads to buckets above it."""

    def __init__(self, spec: str, name: str, **limits: Any) -> None:
        super().__init__(spec, name, dynamic_shapes=False, **limits)

    def compile(self, graph: Graph, placement: Placement, bounds: Mapping[str, int]) -> Executable:
        if graph.symbols():
            raise DeviceError(
                f"{self.spec} takes fixed sizes only, graph {graph.name!r} has {', '.join(sorted(graph.symbols()))}; "
                "compile it by xinheng.core.compiler, which pads to buckets"
            )
        return super().compile(graph, placement, bounds)
