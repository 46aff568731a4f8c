"""Kernels of simulated devices: the reference of each op, behind opaque buffers and private cache layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError
from xinheng.core.hal import KernelRegistry
from xinheng.core.hal.reference import ReferenceKernel, reference_kernels
from xinheng.core.ir.graph import Node
from xinheng.core.ir.op import Op
from xinheng.core.ir.types import StateType
from xinheng.core.ops import OPSET, STATES

from .cache import SimCache
from .handles import SimState, SimTensor, SimWeight

if TYPE_CHECKING:
    from .device import SimDevice

Compute = Callable[..., Any]
"""From numpy arrays, payloads of states and numbers to arrays and payloads, as the op has results."""
Lists = Mapping[str, NDArray[Any]]

READ = {"cache", "block_table"}
"""The operands of ops that read the blocks of a table."""
WRITERS = ("write_cache", "write_latent_cache")


class SimKernel:
    """The kernel of one op on one device; `host` names the operands it wants as host lists."""

    def __init__(self, device: SimDevice, op: Op[..., Any], host: Sequence[str], reference: Any) -> None:
        self.device, self.op, self.host, self.reference = device, op, tuple(host), reference

    def plan(self, node: Node, bounds: Mapping[str, int]) -> PlannedKernel:
        """The kernel of one node."""
        return PlannedKernel(self, node, _compute(node, bounds, self.reference))


class PlannedKernel:
    """A kernel of one node: checks whose operands it gets, and gives the work to the device."""

    def __init__(self, kernel: SimKernel, node: Node, compute: Compute) -> None:
        self.device, self.node, self.compute = kernel.device, node, compute
        last = len(node.op.operands) - 1
        names = [node.op.operands[min(i, last)].name for i in range(len(node.operands))]
        self.hosted = {i: name for i, name in enumerate(names) if name in kernel.host}
        self.names = names
        self._lists: Lists | None = None

    def __call__(self, *operands: Any, **attributes: Any) -> Any:
        for at, operand in enumerate(operands):
            self._check(at, operand)
        lists = {name: np.array(operands[at]) for at, name in self.hosted.items() if operands[at] is not None}
        launch = Launch(self, operands, attributes, lists if self.hosted else None)
        states = iter(x for x in operands if isinstance(x, SimState))
        results: list[SimState | SimTensor] = []
        for value in self.node.results:
            if isinstance(value.type, StateType):
                results.append(next(states))
            else:
                launch.made.append(SimTensor(self.device, value.dtype))
                results.append(launch.made[-1])
        self.device.launch(launch)
        return results[0] if len(results) == 1 else tuple(results)

    def update(self, host: Lists) -> None:
        """The host lists of the next replay of a recorded run, by operand."""
        self._lists = {name: np.array(array) for name, array in host.items()}

    def take_lists(self) -> Lists:
        """The lists of this replay, once; DeviceError if nobody gave new ones."""
        if self._lists is None:
            raise DeviceError(
                f"{self.device.spec}: {self.node.op.name} is replayed with the {', '.join(self.hosted.values())} of an "
                "earlier run; call its update before each replay"
            )
        lists, self._lists = self._lists, None
        return lists

    def _check(self, at: int, operand: Any) -> None:
        """Refuse what does not live where this kernel reads it."""
        spec, where = self.device.spec, f"{self.names[at]} of {self.node.op.name}"
        if at in self.hosted:
            if operand is not None and not isinstance(operand, np.ndarray):
                raise DeviceError(f"{spec} wants {where} as a host list, not as a {type(operand).__name__} on a device")
        elif isinstance(operand, SimTensor | SimWeight | SimState):
            if operand.home is not self.device:
                what = "state" if isinstance(operand, SimState) else "buffer"
                raise DeviceError(f"{spec} got {where} as a {what} of {operand.home.spec}; it has to be on one device")
        elif operand is not None and not isinstance(operand, int | float):
            raise DeviceError(f"{spec} got {where} as a {type(operand).__name__}, which is no buffer of it; upload it")


@dataclass(slots=True)
class Launch:
    """One call of a kernel with its operands, to be computed now, later, or again and again; `made` are its tensors."""

    kernel: PlannedKernel
    operands: tuple[Any, ...]
    attributes: Mapping[str, Any]
    lists: Lists | None
    made: list[SimTensor] = field(default_factory=list)

    def compute(self) -> list[NDArray[Any]]:
        """The arrays of the tensor results, in order. Host lists are good for one time."""
        hosted = self.kernel.hosted
        lists: Lists = {}
        if hosted:
            lists = self.lists if self.lists is not None else self.kernel.take_lists()
            self.lists = None
        opened = [lists.get(hosted[i]) if i in hosted else self._opened(x) for i, x in enumerate(self.operands)]
        raw = self.kernel.compute(*opened, **self.attributes)
        results = raw if isinstance(raw, tuple) and not hasattr(raw, "_fields") else (raw,)
        states = iter(x for x in self.operands if isinstance(x, SimState))
        arrays = []
        for value, result in zip(self.kernel.node.results, results, strict=True):
            if isinstance(value.type, StateType):
                next(states).payload = result
            else:
                arrays.append(result)
        return arrays

    def _opened(self, operand: Any) -> Any:
        """What the kernel reads behind a handle."""
        if isinstance(operand, SimState):
            return operand.payload
        kernel = self.kernel
        return (
            kernel.device.seen(operand.array, kernel.node.op) if isinstance(operand, SimTensor | SimWeight) else operand
        )


def sim_kernels(device: SimDevice, host: Mapping[str, Sequence[str]]) -> KernelRegistry:
    """A kernel for every op; `host` has the operands that those of some ops want as host lists."""
    registry, references = KernelRegistry(), reference_kernels(device)
    for op in OPSET.values():
        wanted, (reference, *_) = host.get(op.name, ()), references.candidates(op.name)
        registry.register(op, name="simulated", host=wanted)(SimKernel(device, op, wanted, reference.function))
    return registry


def _compute(node: Node, bounds: Mapping[str, int], reference: Any) -> Compute:
    """What the kernel of a node computes; `reference` is that of `ReferenceDevice`."""
    name = node.op.name
    if name in WRITERS:
        return _write
    if name == "copy_blocks":
        return _copy
    writes = any(isinstance(r.type, StateType) for r in node.results)
    if not writes and {operand.name for operand in node.op.operands} >= READ:
        return _reader(node, bounds)
    function: Compute = reference.plan(node, bounds) if hasattr(reference, "plan") else reference
    return _on_whole_caches(function) if any(isinstance(v.type, StateType) for v in node.operands if v) else function


def _on_whole_caches(function: Compute) -> Compute:
    """For ops without a kernel that knows private layouts: read all of a cache, compute, and write all of it back."""

    def run(*operands: Any, **attributes: Any) -> Any:
        caches = [x for x in operands if isinstance(x, SimCache)]
        made = function(*(x.whole() if isinstance(x, SimCache) else x for x in operands), **attributes)
        if not caches:
            return made
        left = iter(caches)
        if isinstance(made, STATES):
            return next(left).replaced(made)
        if not isinstance(made, tuple):
            return made
        return tuple(next(left).replaced(x) if isinstance(x, STATES) else x for x in made)

    return run


def _write(cache: SimCache, *rest: Any) -> SimCache:
    *values, slots = rest
    cache.write(slots, *values)
    return cache


def _copy(cache: SimCache, pairs: Any) -> SimCache:
    cache.copy(pairs)
    return cache


def _reader(node: Node, bounds: Mapping[str, int]) -> Compute:
    """A reader of a cache by its reference, on just the blocks its table names."""
    names = [operand.name for operand in node.op.operands]
    cache_at, table_at = names.index("cache"), names.index("block_table")
    run = ReferenceKernel(node.op).plan(node, bounds)

    def read(*operands: Any, **attributes: Any) -> Any:
        given = list(operands)
        cache: SimCache = given[cache_at]
        given[cache_at], given[table_at] = cache.pages(given[table_at])
        return run(*given, **attributes)

    return read
