"""A graph of any sizes on a device that takes fixed ones only: inputs are padded to one of a few sizes, results cut.

Each combination of sizes is compiled when it is first needed; weights and states are shared by all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError, GraphError, UnsupportedOp
from ..ir.dim import evaluate as evaluate_dim
from ..ir.evaluate import bind_sizes, check_sizes
from ..ir.graph import Graph
from ..receipt import Receipt
from .device import Buffer, Device, Event, StateSpace
from .executable import Bound, Executable
from .padding import EDGE, Fill, fills_of
from .profile import Profile
from .weight import WeightSource

Compile = Callable[[Mapping[str, int]], Executable]
"""Compiles the graph with the given size for each of its symbols."""


class BucketedExecutable:
    """An executable for each combination of bucket sizes, behind the face of one for any sizes."""

    def __init__(self, graph: Graph, device: Device, bounds: Mapping[str, int], build: Compile) -> None:
        """Compile the largest sizes at once, so that an op without a kernel is found now.

        Raises:
            DeviceError: a size has no bound, so there is no largest bucket.
            UnsupportedOp: an op would give other results with padding, or makes results whose size only its run tells.
        """
        self.graph, self.device, self._build = graph, device, build
        self.buckets = {name: buckets(bound) for name, bound in self._bounds(bounds).items()}
        try:
            self.fills = fills_of(graph)
        except UnsupportedOp as error:
            raise UnsupportedOp(f"{device.spec} takes fixed sizes only, and {error}; use another device") from None
        self._made: dict[tuple[int, ...], Executable] = {}
        self._largest = self.sized({name: sizes[-1] for name, sizes in self.buckets.items()})
        spelled = "; ".join(f"{name} {', '.join(map(str, sizes))}" for name, sizes in self.buckets.items())
        note = f"sizes are padded to the next of {spelled}; {device.spec} takes fixed sizes only"
        largest = self._largest.receipt
        self.receipt: Receipt = replace(largest, notes=(*largest.notes, note))

    def _bounds(self, bounds: Mapping[str, int]) -> dict[str, int]:
        found = {}
        for name, symbol in self.graph.symbols().items():
            if symbol.unbacked:
                raise UnsupportedOp(
                    f"{self.device.spec} takes fixed sizes only, and size {name!r} of graph {self.graph.name!r} is "
                    "known only after the op that makes it ran; use another device"
                )
            bound = bounds.get(name, symbol.maximum)
            if bound is None:
                raise DeviceError(
                    f"{self.device.spec} takes fixed sizes only, and size {name!r} of graph {self.graph.name!r} has no "
                    "largest value; give one in the bounds of compile"
                )
            found[name] = bound
        return found

    @property
    def compiled(self) -> int:
        """How many combinations of sizes have been compiled so far."""
        return len(self._made)

    def sized(self, sizes: Mapping[str, int]) -> Executable:
        """The executable of one combination of bucket sizes."""
        key = tuple(sizes[name] for name in self.buckets)
        if key not in self._made:
            self._made[key] = self._build(sizes)
        return self._made[key]

    def bucket(self, name: str, size: int) -> int:
        """The smallest bucket that holds `size`; DeviceError if none does."""
        fitting = next((bucket for bucket in self.buckets[name] if bucket >= size), None)
        if fitting is None:
            raise DeviceError(
                f"{self.device.spec}: {name} is {size}, its largest bucket is {self.buckets[name][-1]}; compile graph "
                f"{self.graph.name!r} with a larger bound for {name}"
            )
        return fitting

    def prepare(self, name: str, source: WeightSource | NDArray[Any]) -> Buffer:
        buffer = self._largest.prepare(name, source)
        self.receipt = replace(self.receipt, layouts=self._largest.receipt.layouts)
        return buffer

    def allocate_state(self, space: StateSpace | Mapping[str, StateSpace]) -> dict[str, Buffer]:
        return self._largest.allocate_state(space)

    def bind(self, buffers: Mapping[str, Buffer]) -> BucketedBound:
        fixed = {v.name: buffers[v.name] for v in self.graph.inputs if v.name in buffers}
        return BucketedBound(self, {k: v for k, v in buffers.items() if k not in fixed}, fixed)


class BucketedBound:
    """A `BucketedExecutable` with its parameters and states in place."""

    def __init__(self, executable: BucketedExecutable, buffers: Mapping[str, Buffer], fixed: Mapping[str, Any]) -> None:
        self._exe, self._buffers, self._fixed = executable, dict(buffers), dict(fixed)
        self._bound: dict[tuple[int, ...], Bound] = {}
        self.outputs: dict[str, Buffer] = {}
        self._at(tuple(sizes[-1] for sizes in executable.buckets.values()))

    def run(
        self,
        inputs: Mapping[str, Any],
        dims: Mapping[str, int] | None = None,
        profile: Profile | None = None,
        host: Mapping[str, NDArray[Any]] | None = None,
    ) -> Event:
        exe = self._exe
        given = {**self._fixed, **inputs}
        sizes = bind_sizes(exe.graph, given, dims, self._shape)
        padded = {name: exe.bucket(name, sizes[name]) for name in exe.buckets}
        check_sizes(exe.graph.checks, sizes)
        wide = {v.name: self._pad(v.name, given[v.name], sized_shape(v.shape, padded)) for v in exe.graph.inputs}
        lists = {
            name: self._pad(name, array, sized_shape(self._dims(name), padded)) for name, array in (host or {}).items()
        }
        bound = self._at(tuple(padded.values()))
        event = bound.run(wide, profile=profile, host=lists)
        self.outputs = {
            name: self._cut(bound.outputs[name], sized_shape(value.shape, sizes), value.dtype)
            for name, value in exe.graph.outputs.items()
        }
        return event

    def _at(self, key: tuple[int, ...]) -> Bound:
        if key not in self._bound:
            sizes = dict(zip(self._exe.buckets, key, strict=True))
            self._bound[key] = self._exe.sized(sizes).bind(self._buffers)
        return self._bound[key]

    def _dims(self, name: str) -> tuple[Any, ...]:
        found = next((v.shape for v in self._exe.graph.inputs if v.name == name), None)
        if found is None:
            raise GraphError(f"graph {self._exe.graph.name!r} has no input {name!r} to have on the host")
        return found

    def _pad(self, name: str, value: Any, shape: tuple[int, ...]) -> Any:
        if isinstance(value, np.ndarray) and not self._exe.device.owns(value):
            return fill(value, shape, self._exe.fills[name])
        if self._shape(value) == shape:
            return value
        array = self._exe.device.download(value)
        return fill(array, shape, self._exe.fills[name])

    def _cut(self, buffer: Buffer, shape: tuple[int, ...], dtype: Any) -> Buffer:
        device = self._exe.device
        if device.shape(buffer) == shape:
            return buffer
        return device.crop(buffer, shape, dtype)

    def _shape(self, value: Any) -> tuple[int, ...]:
        return value.shape if isinstance(value, np.ndarray) else self._exe.device.shape(value)


def buckets(bound: int) -> tuple[int, ...]:
    """1, 2, 4, … up to `bound`, which is the last."""
    sizes = []
    size = 1
    while size < bound:
        sizes.append(size)
        size *= 2
    return (*sizes, bound)


def fill(array: NDArray[Any], shape: Sequence[int], value: Fill) -> NDArray[Any]:
    """An array at the beginning of a larger one; the rest is `value`, or the last element for `EDGE`."""
    if array.shape == tuple(shape):
        return array
    rest = (array.flat[-1] if prod(array.shape) else 0) if value == EDGE else value
    wide = np.full(tuple(shape), rest, array.dtype)
    wide[tuple(map(slice, array.shape))] = array
    return wide


def sized_shape(shape: Sequence[Any], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A shape with numbers for its symbols."""
    return tuple(evaluate_dim(dim, sizes) for dim in shape)
