"""A device in pure numpy that computes every op by its float64 reference and rounds each result once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import OutOfMemory
from ..ir.dtype import DTYPES, DType, cast_to, dtype, float64, int8
from ..ir.evaluate import widen
from ..ir.graph import Node
from ..ir.op import Op
from ..ir.types import StateType, TensorType
from ..ops import OPSET, KVPages, LatentPages, QuantizedKVPages, among, state_of
from ..ops.attention import quantized
from ..schemes import scheme
from .arithmetic import ANY_ORDER, Arithmetic
from .collective import Communicator
from .device import Buffer, Capabilities, Device, MemoryStats, StateSpace
from .host import host_memory
from .kernel import KernelRegistry
from .weight import WeightSource

KV = KVPages | QuantizedKVPages
Paged = TypeVar("Paged", KV, LatentPages)

EXACT = Arithmetic(ANY_ORDER, accumulate=float64, determinism="D4")
"""That of references: float64 in any order, each result rounded once."""


class ReferenceKernel:
    """Runs one op by its reference on widened operands."""

    def __init__(self, op: Op[..., Any], device: Device | None = None) -> None:
        self.op = op
        self.device = device
        self.__name__ = "reference"

    def plan(self, node: Node, bounds: Mapping[str, int]) -> Callable[..., Any]:
        """A function from buffers to buffers for this node."""
        kinds = [r.type for r in node.results]
        reference = self.op.reference

        def run(*operands: Any, **attributes: Any) -> Any:
            states = (operand for operand in operands if hasattr(operand, "_fields"))
            with np.errstate(all="ignore"), among(self._peers(attributes)):
                raw = reference(*map(widen, operands), **attributes)
                made = raw if isinstance(raw, tuple) and not hasattr(raw, "_fields") else (raw,)
                kept = [
                    cast_to(np.asarray(x), kind.dtype) if isinstance(kind, TensorType) else _kept(next(states), x)
                    for x, kind in zip(made, kinds, strict=True)
                ]
            return kept[0] if len(kept) == 1 else tuple(kept)

        return run

    def _peers(self, attributes: Mapping[str, Any]) -> dict[str, Communicator]:
        """The other ranks of the group that an op names, if there are several."""
        if self.device is None or attributes.get("size", 1) == 1 or "group" not in attributes:
            return {}
        return {attributes["group"]: self.device.communicator(attributes["group"])}


def _kept(state: Any, new: Any) -> Any:
    """A state with new contents in its own memory."""
    for held, written in zip(state, new, strict=True):
        held[...] = cast_to(np.asarray(written), _dtype_of(held))
    return state


def write_cache(cache: KV, k: Any, v: Any, slots: Any) -> KV:
    """The same as the reference, in place."""
    rows = [np.asarray(x).astype(np.float64) for x in (k, v)]
    return _written(cache, quantized(*rows) if isinstance(cache, QuantizedKVPages) else rows, slots)


def _written(cache: Paged, rows: Sequence[Any], slots: Any) -> Paged:
    """A paged state with new rows in the slots that are not negative."""
    valid = np.flatnonzero(np.asarray(slots) >= 0)
    for pages, new in zip(cache, rows, strict=True):
        flat = pages.reshape(-1, *pages.shape[2:])
        flat[np.asarray(slots)[valid]] = cast_to(np.asarray(new, np.float64)[valid], _dtype_of(pages))
    return cache


def write_latent_cache(cache: LatentPages, latent: Any, rope: Any, slots: Any) -> LatentPages:
    """The same as the reference, in place."""
    return _written(cache, (latent, rope), slots)


def paged_attention_planner(op: Op[..., Any]) -> Any:
    """The reference kernel, but reading a cache without widening all of it first."""

    class Plan(ReferenceKernel):
        def plan(self, node: Node, bounds: Mapping[str, int]) -> Callable[..., Any]:
            run = super().plan(node, bounds)

            def narrow(q: Any, cache: KV, query_start: Any, seq_lens: Any, table: Any, *rest: Any, **attrs: Any) -> Any:
                there = (table >= 0) & (table < cache.k.shape[0])
                used = np.unique(table[there]) if there.any() else np.zeros(1, int)
                index = np.zeros(cache.k.shape[0], int)
                index[used] = np.arange(used.size)
                pages = type(cache)(*(part[used] for part in cache))
                return run(q, pages, query_start, seq_lens, index[np.where(there, table, used[0])], *rest, **attrs)

            return narrow

    return Plan(op)


def _dtype_of(array: NDArray[Any]) -> DType:
    return dtype(array.dtype.name)


def reference_kernels(device: Device | None = None) -> KernelRegistry:
    """A registry with a reference kernel for every op of the op set; collectives go through the groups of `device`."""
    registry = KernelRegistry()
    for op in OPSET.values():
        if op.name == "write_cache":
            registry.register(op, name="reference")(write_cache)
        elif op.name == "write_latent_cache":
            registry.register(op, name="reference")(write_latent_cache)
        elif op.name == "paged_attention":
            registry.register(op, name="reference")(paged_attention_planner(op))
        else:
            registry.register(op, name="reference")(ReferenceKernel(op, device))
    return registry


class ReferenceDevice(Device):
    """The host as a slow and exact device; its buffers are numpy arrays."""

    def __init__(self, spec: str = "reference", name: str = "numpy float64 reference") -> None:
        self.spec, self.name = spec, name
        self.capabilities = Capabilities(
            frozenset(DTYPES.values()), unified_memory=True, arithmetic=EXACT, cache_schemes=frozenset({int8.name})
        )
        self.kernels = reference_kernels(self)

    def upload(self, array: NDArray[Any], dtype: DType) -> Buffer:
        return cast_to(array, dtype) if array.dtype != dtype.numpy else array

    def download(self, buffer: Buffer) -> NDArray[Any]:
        return np.asarray(buffer)

    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        wide = any(scheme(part.scheme).dense is float64 for part in source.parts)
        return source.unpack(np.float64 if wide else np.float32)

    def layout_of(self, buffer: Buffer) -> tuple[str, int]:
        return f"expanded to {buffer.dtype.name}", int(buffer.nbytes)

    def allocate_state(self, type: StateType, space: StateSpace) -> Buffer:
        lead = (space.blocks, space.block_size) if type.paged else (space.blocks,)
        try:
            return state_of(type, [np.zeros((*lead, *part.shape), part.dtype.numpy) for part in self.parts(type)])
        except MemoryError:
            raise OutOfMemory(
                f"{self.spec}: no room for {space.blocks} cache blocks; lower engine.cache_memory"
            ) from None

    def read_state(self, state: Buffer, type: StateType) -> tuple[NDArray[Any], ...]:
        made: tuple[NDArray[Any], ...] = state._make(map(np.array, state))
        return made

    def write_state(self, state: Buffer, type: StateType, pages: tuple[NDArray[Any], ...]) -> None:
        _kept(state, pages)

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        return tuple(np.shape(buffer))

    def memory(self) -> MemoryStats:
        return host_memory()
