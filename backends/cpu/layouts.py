"""One layout per weight: kernels that want tiles run only where all readers of the weight do, and some product does."""

from __future__ import annotations

from xinheng.core.errors import DeviceError
from xinheng.core.hal import Choice, Device, Placement, Refusal
from xinheng.core.ir.graph import Graph, Node
from xinheng.core.ir.types import WeightType

from .commands import TILE_PRODUCTS

LOOKUP = "native_embedding_tiles"
TILE_KERNELS = frozenset({*TILE_PRODUCTS, "native_grouped_linear_int8", "native_fused_moe_int8", LOOKUP})
"""Kernels that read weights in tiles."""


def agreed(graph: Graph, placement: Placement, device: Device) -> Placement:
    """The placement, with the next best kernels that read weights as stored where readers of a weight disagree.

    Rows that are only looked up stay as stored as well, if a kernel reads them so: packing them would gain nothing.

    Raises:
        DeviceError: a node has no such kernel.
    """
    stored: dict[int, Choice] = {}
    multiplied: set[int] = set()
    for node, choice in zip(graph.nodes, placement, strict=True):
        if choice.kernel.name not in TILE_KERNELS:
            stored |= dict.fromkeys(_weights(node), choice)
        elif choice.kernel.name != LOOKUP:
            multiplied.update(_weights(node))
    made, given_way = [], False
    for node, choice in zip(graph.nodes, placement, strict=True):
        other = next((stored[weight] for weight in _weights(node) if weight in stored), None)
        if other is not None and choice.kernel.name in TILE_KERNELS:
            reason = f"{other.kernel.name} of {other.kernel.op} reads the same weight as stored"
            choice, given_way = _without_tiles(node, choice, reason, device), True
        elif choice.kernel.name == LOOKUP and multiplied.isdisjoint(_weights(node)):
            choice = _without_tiles(node, choice, "no product reads the same weight", device, choice)
        made.append(choice)
    # a kernel that gave way may share another weight with one that did not
    return agreed(graph, made, device) if given_way else made


def _weights(node: Node) -> list[int]:
    """The weights that a node reads, by identity."""
    return [id(value) for value in node.operands if value is not None and isinstance(value.type, WeightType)]


def _without_tiles(node: Node, choice: Choice, reason: str, device: Device, otherwise: Choice | None = None) -> Choice:
    """The next best kernel that reads weights as stored; `otherwise` if there is none."""
    told = (*choice.refusals, Refusal(choice.kernel.name, reason))
    for kernel in device.kernels.ranked(node.op.name):
        if kernel.name not in TILE_KERNELS and device.select(node, kernel.name)[0] is not None:
            return Choice(kernel, choice.device, told)
    if otherwise is not None:
        return otherwise
    raise DeviceError(f"{device.spec}: {node.op.name} has no kernel that reads its weight as stored, and {reason}")
