"""What all executables of a graph on one device share: parameters, states, and the check of what a run is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError, GraphError
from ..ir.evaluate import bind_sizes, check_sizes
from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from ..receipt import Receipt
from .device import Buffer, Device, StateSpace
from .weight import WeightSource


class GraphExecutable:
    """The part of an `Executable` that is the same for kernels and for whole graphs; `bind` is up to the subclass."""

    def __init__(self, graph: Graph, device: Device, placement: Iterable[Any], bounds: Mapping[str, int]) -> None:
        self.graph, self.device, self.bounds, self.placement = graph, device, dict(bounds), tuple(placement)
        self.receipt = self._receipt()

    def _receipt(self) -> Receipt:
        return Receipt.of(self.graph, self.placement, self.device.spec)

    def prepare(self, name: str, source: WeightSource | np.ndarray[Any, Any]) -> Buffer:
        value = parameter_of(self.graph, name, source)
        buffer = place_parameter(self.device, value, source, readers_of(self.graph, name))
        if isinstance(source, WeightSource):
            layout, held = self.device.layout_of(buffer)
            self.receipt = self.receipt.with_weight(source.type.scheme, layout, held, source.nbytes)
        return buffer

    def allocate_state(self, space: StateSpace | Mapping[str, StateSpace]) -> dict[str, Buffer]:
        return {
            state.name: self.device.allocate_state(state.type, space_of(self.graph, state, space))  # type: ignore[arg-type]
            for state, _ in self.graph.states
        }

    def check_buffers(self, buffers: Mapping[str, Buffer]) -> None:
        """GraphError if a parameter or a state has no buffer."""
        check_buffers(self.graph, buffers)

    def check_inputs(self, inputs: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> dict[str, int]:
        """The sizes of a run, for devices that do not look at its inputs one by one.

        Raises:
            GraphError: an input is missing or does not fit, or sizes that must be equal are not.
            DeviceError: a size exceeds the bound the graph was compiled for.
        """
        sizes = bind_sizes(self.graph, inputs, dims, self.shape_of)
        check_bounds(self.bounds, sizes)
        check_sizes(self.graph.checks, sizes)
        for value in self.graph.inputs:
            given = inputs[value.name]
            if isinstance(given, np.ndarray) and not self.device.owns(given):
                check_dtype(value, given)
        return sizes

    def shape_of(self, value: Any) -> tuple[int, ...]:
        """The sizes of an input; GraphError if it is neither an array nor a buffer."""
        if isinstance(value, np.ndarray):
            return value.shape
        if isinstance(value, list | tuple | int | float | np.generic):
            raise GraphError(f"inputs are numpy arrays or buffers of {self.device.spec}, not {type(value).__name__}")
        return self.device.shape(value)


def parameter_of(graph: Graph, name: str, source: WeightSource | NDArray[Any]) -> Value:
    """The parameter that a source is meant for; GraphError if there is none or the source is another kind of thing."""
    value = next((p for p in graph.parameters if p.name == name), None)
    if value is None:
        raise GraphError(f"graph {graph.name!r} has no parameter {name!r}")
    if isinstance(source, WeightSource):
        if value.type != source.type:
            raise GraphError(f"parameter {name!r} is {value.type}, its source is {source.type}")
    elif not isinstance(value.type, TensorType) or tuple(source.shape) != value.shape:
        raise GraphError(f"parameter {name!r} is {value.type}, its source is an array of shape {list(source.shape)}")
    return value


def readers_of(graph: Graph, name: str) -> list[str]:
    """The ops that read a value of that name, once each."""
    nodes = (n for n in graph.nodes if any(v is not None and v.name == name for v in n.operands))
    return list(dict.fromkeys(node.op.name for node in nodes))


def place_parameter(
    device: Device, value: Value, source: WeightSource | NDArray[Any], readers: Sequence[str]
) -> Buffer:
    """A parameter on a device, in a layout that suits its readers."""
    return device.prepare(source, readers) if isinstance(source, WeightSource) else device.upload(source, value.dtype)


def space_of(graph: Graph, state: Value, space: StateSpace | Mapping[str, StateSpace]) -> StateSpace:
    """How much of a state to allocate; GraphError if `space` does not say."""
    if isinstance(space, StateSpace):
        return space
    if state.name not in space:
        raise GraphError(f"graph {graph.name!r}: no space is given for state {state.name!r}")
    return space[state.name]


def check_bounds(bounds: Mapping[str, int], sizes: Mapping[str, int]) -> None:
    """DeviceError if a size exceeds what the graph was compiled for."""
    for name, bound in bounds.items():
        if sizes.get(name, 0) > bound:
            raise DeviceError(f"{name} is {sizes[name]}, but the graph was compiled for at most {bound}")


def check_dtype(value: Value, array: NDArray[Any]) -> None:
    """GraphError if an array given for an input has another dtype."""
    if array.dtype != value.dtype.numpy:
        raise GraphError(f"input {value.name!r} is {array.dtype}, the graph wants {value.dtype}")


def check_buffers(graph: Graph, buffers: Mapping[str, Buffer]) -> None:
    """GraphError if a parameter or a state of a graph has no buffer."""
    for value in (*graph.parameters, *(state for state, _ in graph.states)):
        if value.name not in buffers:
            raise GraphError(f"graph {graph.name!r}: no buffer for {value.name!r}")
