"""One layout per weight: kernels that want tiles run only where all readers of the weight do."""

from __future__ import annotations

from xinheng.core.errors import DeviceError
from xinheng.core.hal import Choice, Device, Placement, Refusal
from xinheng.core.ir.graph import Graph, Node
from xinheng.core.ir.types import WeightType

from .commands import TILE_PRODUCTS

TILE_LOOKUP = "native_embedding_tiles"
"""Reads rows in tiles and as stored."""
TILE_KERNELS = frozenset({*TILE_PRODUCTS, "native_grouped_linear_int8", "native_fused_moe_int8", TILE_LOOKUP})
"""Kernels that read weights in tiles."""


def agreed(graph: Graph, placement: Placement, device: Device) -> Placement:
    """The placement, with the next best kernels that read weights as stored where readers of a weight disagree.

    Raises:
        DeviceError: a node has no such kernel.
    """
    stored: dict[int, Choice] = {}
    for node, choice in zip(graph.nodes, placement, strict=True):
        if choice.kernel.name not in TILE_KERNELS:
            stored |= dict.fromkeys(_weights(node), choice)
    made, given_way = [], False
    for node, choice in zip(graph.nodes, placement, strict=True):
        other = next((stored[weight] for weight in _weights(node) if weight in stored), None)
        if other is not None and choice.kernel.name in TILE_KERNELS:
            choice, given_way = _without_tiles(node, choice, other, device), True
        made.append(choice)
    # a kernel that gave way may share another weight with one that did not
    return agreed(graph, made, device) if given_way else made


def _weights(node: Node) -> list[int]:
    """The weights that a node reads, by identity."""
    return [id(value) for value in node.operands if value is not None and isinstance(value.type, WeightType)]


def _without_tiles(node: Node, choice: Choice, other: Choice, device: Device) -> Choice:
    reason = f"{other.kernel.name} of {other.kernel.op} reads the same weight as stored"
    told = (*choice.refusals, Refusal(choice.kernel.name, reason))
    for kernel in device.kernels.candidates(node.op.name):
        if kernel.name not in TILE_KERNELS and device.select(node, kernel.name)[0] is not None:
            return Choice(kernel, choice.device, told)
    raise DeviceError(f"{device.spec}: {node.op.name} has no kernel that reads its weight as stored, and {reason}")
