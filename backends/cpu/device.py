"""The CPU with native kernels: numpy arrays in host memory, and torch for the ops that no native kernel runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError, OutOfMemory
from xinheng.core.hal import (
    ANY_ORDER,
    Arithmetic,
    Buffer,
    Capabilities,
    Device,
    DeviceOptions,
    Executable,
    KernelRegistry,
    Limits,
    MemoryGuard,
    MemoryStats,
    Placement,
    StateSpace,
    WeightSource,
    converted,
)
from xinheng.core.hal.host import host_memory
from xinheng.core.ir.dtype import DType, cast_to, from_numpy
from xinheng.core.ir.graph import Graph
from xinheng.core.ir.types import StateType
from xinheng.core.ops import state_of

from .arrays import Array, aligned, contiguous
from .executable import CPUExecutable
from .extra import INSTALL, has_torch
from .guarded import HostGuard
from .handles import HELD, HostWeight, HostWeightPart
from .jit import NativeUnavailable, load
from .kernels import Library, available_threads, register_native
from .limits import measure_limits
from .prebuilt import load_prebuilt
from .processor import processor_name

ARITHMETIC = Arithmetic(ANY_ORDER, determinism="D4")
"""float32 or wider; an element is added up in one order, whatever the batch and the threads."""
FAST = replace(
    ARITHMETIC,
    programs={
        "linear": ("int8-activations", "bfloat16-activations"),
        "grouped_linear": ("int8-activations",),
        "fused_moe": ("int8-activations",),
    },
)
"""In fast mode, products with weights in tiles round their activations."""


class CPUDevice(Device):
    """`cpu:0`; its buffers are numpy arrays, weights are `HostWeight` or tiles, caches the tuples of references."""

    def __init__(self, options: DeviceOptions) -> None:
        """Compile the native kernels or find those that were.

        Raises:
            NativeUnavailable: there is no compiler, and no kernels are prebuilt for this processor.
        """
        self.spec, self.name = "cpu:0", processor_name()
        self._library, self._notes = _library(options)
        if not has_torch():
            self._notes += ("torch is not installed: ops without native kernels do not run",)
        fast = options.numerics.mode == "fast"
        self.capabilities = Capabilities(
            HELD,
            block_sizes=(16, 32, 64, 128),
            unified_memory=True,
            arithmetic=FAST if fast else ARITHMETIC,
            narrow_cache="float16" if fast else None,
            cache_schemes=frozenset({"int8"}),
        )
        self.threads = threads_of(options)
        self._library.set_threads(self.threads)
        self.kernels = KernelRegistry(self._torch_kernels)
        register_native(self.kernels, self._library, fast=fast)

    def _torch_kernels(self) -> KernelRegistry:
        if not has_torch():
            return KernelRegistry()
        from .torch_kernels import TorchKernels

        return TorchKernels(self)

    @property
    def guard(self) -> HostGuard | None:
        """Who watches the memory of this device now."""
        return self._library.guard

    @guard.setter
    def guard(self, guard: HostGuard | None) -> None:
        self._library.guard = guard

    def guard_memory(self) -> MemoryGuard | None:
        return HostGuard(self)

    def upload(self, array: NDArray[Any], dtype: DType) -> Buffer:
        if dtype not in HELD:
            raise DeviceError(f"{self.spec}: kernels take no tensors of {dtype}")
        return self._placed(aligned(contiguous(array if array.dtype == dtype.numpy else cast_to(array, dtype))))

    def _placed(self, array: Array) -> Array:
        return array if self.guard is None else self.guard.moved(array)

    def download(self, buffer: Buffer) -> NDArray[Any]:
        return contiguous(buffer)

    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        held, how = converted(source, self.capabilities.dtypes, self.spec)
        parts = (HostWeightPart.of(part) for part in held.parts)
        placed = tuple(replace(part, data=self._placed(part.data)) for part in parts)
        return HostWeight(held.shape, placed, how or "as stored")

    def layout_of(self, buffer: Buffer) -> tuple[str, int]:
        return buffer.layout if isinstance(buffer, HostWeight) else "as stored", buffer.nbytes

    def allocate_state(self, type: StateType, space: StateSpace) -> Buffer:
        lead = (space.blocks, space.block_size) if type.paged else (space.blocks,)
        try:
            # keys dim by dim: sixteen of them in one vector, so that neither one query nor many have to transpose them
            axes = {"k": (0, 3, 1, 2), "v": (0, 2, 1, 3), "k_scale": (0, 2, 1), "v_scale": (0, 2, 1)}
            parts = [((*lead, *p.shape), p.dtype.numpy, axes.get(p.name)) for p in self.parts(type)]
            return state_of(type, [self._cleared(*part) for part in parts])
        except MemoryError as error:
            raise OutOfMemory(f"{self.spec}: no room for {space.blocks} cache blocks: {error}") from error

    def _cleared(self, shape: tuple[int, ...], kind: np.dtype[Any], order: tuple[int, ...] | None) -> Array:
        """Memory of a state; axis i lies where `order` says in memory, None: in its own place."""
        # as bytes: fresh zero pages of the system take no memory until they are written
        flat = np.zeros(math.prod(shape) * kind.itemsize, np.uint8).view(kind)
        if order is None:
            return self._placed(flat.reshape(shape))
        stored = [0] * len(shape)
        for axis, place in enumerate(order):
            stored[place] = shape[axis]
        return self._placed(flat.reshape(stored).transpose(order))

    def read_state(self, state: Buffer, type: StateType) -> tuple[NDArray[Any], ...]:
        made: tuple[NDArray[Any], ...] = state._make(np.array(part, order="C") for part in state)
        return made

    def write_state(self, state: Buffer, type: StateType, pages: tuple[NDArray[Any], ...]) -> None:
        for held, new in zip(state, pages, strict=True):
            held[...] = self.upload(new, from_numpy(held.dtype))

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        return tuple(buffer.shape)

    def join(self, group: str, rank: int, size: int, address: str) -> None:
        if not has_torch():
            raise DeviceError(f"{self.spec}: ranks are joined by torch, which is not installed; {INSTALL}")
        from .torch_kernels import GlooOfArrays

        self.connect(group, GlooOfArrays(rank, size, address))

    def notes(self) -> tuple[str, ...]:
        return self._notes

    def limits(self, working_set: int) -> Limits | None:
        return measure_limits(self._library, self.memory(), working_set)

    def compile(self, graph: Graph, placement: Placement, bounds: Mapping[str, int]) -> Executable:
        return CPUExecutable(graph, self, placement, bounds, self._library)

    def memory(self) -> MemoryStats:
        return host_memory()


def threads_of(options: DeviceOptions) -> int:
    """How many threads a device computes with."""
    return options.threads or max(1, available_threads() // options.sharers)


def _library(options: DeviceOptions) -> tuple[Library, tuple[str, ...]]:
    """The native kernels; a note says where they are not what this machine's compiler made of them."""
    try:
        return Library(load(options.cache_dir / "jit" if options.cache_dir else None).library), ()
    except NativeUnavailable as error:
        try:
            found, target = load_prebuilt()
        except NativeUnavailable as missing:
            raise NativeUnavailable(f"{error.reason}; {missing.reason}") from missing
        return Library(found.library), (f"native CPU kernels are those prebuilt for {target}: {error.reason}",)
