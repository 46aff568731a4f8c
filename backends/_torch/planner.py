"""Kernels that are one object per node of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xinheng.core.ir.graph import Node


class Planner:
    """What the registry takes: `make` returns the function of one node."""

    def __init__(self, make: Callable[[Node], Callable[..., Any]]) -> None:
        self._make = make

    def plan(self, node: Node, bounds: Mapping[str, int]) -> Callable[..., Any]:
        return self._make(node)
