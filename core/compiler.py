"""From a graph and a device to an executable: the whole pipeline, top to bottom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .hal.bucketed import BucketedExecutable
from .hal.device import Device, Numerics
from .hal.executable import Executable
from .hal.partitioned import PartitionedExecutable
from .ir.graph import Graph
from .ir.verify import verify
from .passes import decompose, fuse, partition, simplify, specialise
from .placement import Placer


def compile(
    graph: Graph,
    device: Device,
    *,
    bounds: Mapping[str, int] | None = None,
    fallback: Device | None = None,
    numerics: Numerics | None = None,
) -> Executable:
    """Make `graph` ready to run on `device`.

    For each node: a kernel of the device, else the op's decomposition, else `fallback`. Nothing is moved or decomposed
    without standing in the receipt. All ops of a state are on one device; a weight goes to each device that reads it.
    For a device without dynamic shapes, sizes are padded to buckets.

    Args:
        bounds: the largest value of each symbolic size; a run beyond it is an error.
        fallback: a device for ops that `device` cannot run at all; None means that such an op is an error.
        numerics: the arithmetic mode, and overrides `op -> device | decompose | reference | @kernel-name`.

    Raises:
        GraphError: the graph is not well formed.
        UnsupportedOp: an op has no kernel and no decomposition here and there is no fallback, or it would give other
            results with the padding that a device of fixed shapes needs.
        DeviceError: the device takes fixed shapes only, and a size has no bound.
        SettingsError: an override names an unknown op or an impossible choice.
    """
    verify(graph)
    placer = Placer(device, fallback, (numerics or Numerics()).overrides)
    placer.check(graph)
    if device.capabilities.dynamic_shapes or not graph.symbols():
        return _compile(graph, placer, bounds or {})
    return BucketedExecutable(graph, device, bounds or {}, lambda sizes: _compile(specialise(graph, sizes), placer, {}))


def _compile(graph: Graph, placer: Placer, bounds: Mapping[str, int]) -> Executable:
    """Lower a graph to what the device has and hand it over, in parts if it needs several devices."""
    device = placer.device
    expanded = decompose(graph, placer.keeps)
    lowered = simplify(fuse(expanded, placer.fusible, placer.overrides))
    choices = placer.place(lowered)
    executable: Executable
    if all(choice.device is device for choice in choices.values()):
        executable = device.compile(lowered, [choices[id(node)] for node in lowered.nodes], bounds)
    else:
        parts = partition(lowered, lambda node: choices[id(node)].device)
        made = [p.place.compile(p.graph, [choices[id(node)] for node in p.nodes], bounds) for p in parts]
        executable = PartitionedExecutable(lowered, device, made, bounds)
    notes = (*executable.receipt.notes, *device.notes())
    decomposed = () if expanded is graph else placer.decomposed(graph)
    executable.receipt = replace(executable.receipt, decomposed=decomposed, notes=notes)
    return executable
