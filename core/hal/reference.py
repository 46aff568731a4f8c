"""A device in pure numpy that computes every op by its float64 reference and rounds each result once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError, OutOfMemory
from ..ir.dtype import DTYPES, DType, cast_to, dtype, float64
from ..ir.evaluate import widen
from ..ir.graph import Node
from ..ir.op import Op
from ..ir.types import StateType, TensorType
from ..ops import OPSET, KVPages
from ..schemes import scheme
from .device import Buffer, Capabilities, Device, MemoryStats, StateSpace
from .host import host_memory
from .kernel import KernelRegistry
from .weight import WeightSource


class ReferenceKernel:
    """Runs one op by its reference on widened operands."""

    def __init__(self, op: Op[..., Any]) -> None:
        self.op = op
        self.__name__ = "reference"

    def plan(self, node: Node, bounds: Mapping[str, int]) -> Callable[..., Any]:
        """A function from buffers to buffers for this node."""
        kinds = [r.type for r in node.results]
        reference = self.op.reference

        def run(*operands: Any, **attributes: Any) -> Any:
            with np.errstate(all="ignore"):
                raw = reference(*map(widen, operands), **attributes)
                made = raw if isinstance(raw, tuple) and not hasattr(raw, "_fields") else (raw,)
                kept = [_close(x, kind) for x, kind in zip(made, kinds, strict=True)]
            return kept[0] if len(kept) == 1 else tuple(kept)

        return run


def _close(x: Any, kind: Any) -> Any:
    if isinstance(x, KVPages):
        target = dtype(kind["scheme"])
        return KVPages(*(cast_to(np.asarray(pages), target) for pages in x))
    assert isinstance(kind, TensorType)
    return cast_to(np.asarray(x), kind.dtype)


def write_cache(cache: KVPages, k: Any, v: Any, slots: Any) -> KVPages:
    """The same as the reference, in place."""
    valid = np.flatnonzero(np.asarray(slots) >= 0)
    for pages, new in zip(cache, (k, v), strict=True):
        flat = pages.reshape(-1, *pages.shape[2:])
        flat[np.asarray(slots)[valid]] = cast_to(np.asarray(new)[valid].astype(np.float64), _dtype_of(pages))
    return cache


def paged_attention_planner(op: Op[..., Any]) -> Any:
    """The reference kernel, but reading a cache without widening all of it first."""

    class Plan(ReferenceKernel):
        def plan(self, node: Node, bounds: Mapping[str, int]) -> Callable[..., Any]:
            run = super().plan(node, bounds)

            def narrow(
                q: Any, cache: KVPages, query_start: Any, seq_lens: Any, table: Any, *rest: Any, **attrs: Any
            ) -> Any:
                there = (table >= 0) & (table < cache.k.shape[0])
                used = np.unique(table[there]) if there.any() else np.zeros(1, int)
                index = np.zeros(cache.k.shape[0], int)
                index[used] = np.arange(used.size)
                pages = KVPages(cache.k[used], cache.v[used])
                return run(q, pages, query_start, seq_lens, index[np.where(there, table, used[0])], *rest, **attrs)

            return narrow

    return Plan(op)


def _dtype_of(array: NDArray[Any]) -> DType:
    return dtype(array.dtype.name)


def reference_kernels() -> KernelRegistry:
    """A registry with a reference kernel for every op of the op set."""
    registry = KernelRegistry()
    for op in OPSET.values():
        if op.name == "write_cache":
            registry.register(op, name="reference")(write_cache)
        elif op.name == "paged_attention":
            registry.register(op, name="reference")(paged_attention_planner(op))
        else:
            registry.register(op, name="reference")(ReferenceKernel(op))
    return registry


class ReferenceDevice(Device):
    """The host as a slow and exact device; its buffers are numpy arrays."""

    def __init__(self, spec: str = "reference", name: str = "numpy float64 reference") -> None:
        self.spec, self.name = spec, name
        self.capabilities = Capabilities(frozenset(DTYPES.values()), unified_memory=True)
        self.kernels = reference_kernels()

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
        if type.kind != "paged_kv" or type["scheme"] not in DTYPES:
            raise DeviceError(f"{self.spec}: no room for {type} here; only dense paged_kv states are known")
        kind = dtype(type["scheme"])
        lead = (space.blocks, space.block_size, type["heads"])
        try:
            return KVPages(np.zeros((*lead, type["k_dim"]), kind.numpy), np.zeros((*lead, type["v_dim"]), kind.numpy))
        except MemoryError:
            raise OutOfMemory(
                f"{self.spec}: no room for {space.blocks} cache blocks; lower engine.cache_memory"
            ) from None

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        return tuple(np.shape(buffer))

    def memory(self) -> MemoryStats:
        return host_memory()
