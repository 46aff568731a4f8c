"""The CPU as a torch device with native kernels where they can be compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from xinheng.core.hal import (
    ANY_ORDER,
    Arithmetic,
    Capabilities,
    DeviceOptions,
    Executable,
    KernelRegistry,
    Limits,
    MemoryStats,
    Placement,
)
from xinheng.core.hal.host import host_memory
from xinheng.core.ir.graph import Graph

from .._torch import TORCH_KERNELS, TorchDevice
from .._torch.handles import DTYPES
from .._torch.kernels.collective import register_collectives
from .._torch.kernels.movement import register_makers
from .executable import CPUExecutable
from .jit import NativeUnavailable, load
from .kernels import Library, available_threads, register_by_token, register_native, register_unsigned
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
TORCH_ONLY = Arithmetic(ANY_ORDER, determinism="D2")
"""Without the native kernels: libraries below torch choose the order by the size of a product."""


class CPUDevice(TorchDevice):
    """`cpu:0`; its buffers are torch tensors in host memory."""

    def __init__(self, options: DeviceOptions) -> None:
        library, self._notes = _library(options)
        fast = options.numerics.mode == "fast"
        arithmetic = TORCH_ONLY if library is None else FAST if fast else ARITHMETIC
        capabilities = Capabilities(
            frozenset(DTYPES),
            block_sizes=(16, 32, 64, 128),
            unified_memory=True,
            arithmetic=arithmetic,
            narrow_cache="float16" if fast and library is not None else None,
        )
        super().__init__("cpu:0", processor_name(), torch.device("cpu"), capabilities)
        self.kernels = KernelRegistry(TORCH_KERNELS)
        register_makers(self.kernels, self.device)
        register_collectives(self.kernels, self)
        register_unsigned(self.kernels)
        register_by_token(self.kernels)
        self.threads = options.threads or max(1, available_threads() // options.sharers)
        torch.set_num_threads(self.threads)  # the kernels of torch that run between ours
        self._library = library
        if library is not None:
            library.set_threads(self.threads)
            register_native(self.kernels, library, fast=fast)

    def notes(self) -> tuple[str, ...]:
        return self._notes

    def limits(self, working_set: int) -> Limits | None:
        return None if self._library is None else measure_limits(self._library, self.memory(), working_set)

    def compile(self, graph: Graph, placement: Placement, bounds: Mapping[str, int]) -> Executable:
        if self._library is None:
            return super().compile(graph, placement, bounds)
        return CPUExecutable(graph, self, placement, bounds, self._library)

    def _zeros(self, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        # fresh zero pages of the system take no memory until they are written, unlike those that torch clears itself
        flat = np.zeros(math.prod(shape) * kind.itemsize, np.uint8)
        return torch.from_numpy(flat).view(kind).reshape(shape)

    def _keys(self, shape: tuple[int, int, int, int], kind: torch.dtype) -> torch.Tensor:
        if self._library is None:
            return super()._keys(shape, kind)
        # dim by dim: sixteen keys in one vector, so that neither one query nor many have to transpose them
        blocks, size, heads, width = shape
        return self._placed(self._zeros((blocks, heads, width, size), kind).permute(0, 3, 1, 2))

    def _values(self, shape: tuple[int, int, int, int], kind: torch.dtype) -> torch.Tensor:
        if self._library is None:
            return super()._values(shape, kind)
        blocks, size, heads, width = shape
        return self._placed(self._zeros((blocks, heads, size, width), kind).permute(0, 2, 1, 3))

    def memory(self) -> MemoryStats:
        return host_memory()


def _library(options: DeviceOptions) -> tuple[Library | None, tuple[str, ...]]:
    """The native kernels; a note says where they are not what this machine's compiler made of them."""
    try:
        return Library(load(options.cache_dir / "jit" if options.cache_dir else None).library), ()
    except NativeUnavailable as error:
        try:
            found, target = load_prebuilt()
        except NativeUnavailable as missing:
            return None, (f"{error}; {missing.reason}",)
        return Library(found.library), (f"native CPU kernels are those prebuilt for {target}: {error.reason}",)
