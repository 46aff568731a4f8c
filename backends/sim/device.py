"""A simulated device: opaque buffers, a private cache layout, and limits that a profile sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError, OutOfMemory, XinhengError
from xinheng.core.hal import (
    Buffer,
    Capabilities,
    Device,
    MemoryGuard,
    MemoryStats,
    ReferenceDevice,
    StateSpace,
    WeightSource,
    converted,
)
from xinheng.core.hal.host import host_memory
from xinheng.core.hal.reference import EXACT
from xinheng.core.ir.dtype import DTYPES, DType, bfloat16, cast_to
from xinheng.core.ir.op import Op
from xinheng.core.ir.types import StateType

from .cache import SimCache
from .cache_layouts import AsDeclared, CacheLayout
from .handles import SimState, SimTensor, SimWeight
from .kernels import Launch, sim_kernels
from .memory_guard import SimGuard


class SimDevice(Device):
    """Computes every op by its reference, as `sim:exact` does, so that its numbers are the same; all else may differ.

    Args:
        layout: how paged caches lie in memory.
        without: dtypes that no tensor, cache or weight may have.
        host: by op, the operands that its kernel wants as host lists.
        capabilities: what else differs from the defaults of `Capabilities`.
    """

    def __init__(
        self,
        spec: str,
        name: str,
        *,
        layout: type[CacheLayout] = AsDeclared,
        without: Sequence[DType] = (),
        host: Mapping[str, Sequence[str]] | None = None,
        **capabilities: Any,
    ) -> None:
        self.spec, self.name, self.layout = spec, name, layout
        kinds = frozenset(DTYPES.values()) - frozenset(without)
        self.capabilities = Capabilities(
            kinds,
            unified_memory=True,
            **{"arithmetic": EXACT, "cache_schemes": frozenset({"int8"}), **capabilities},
        )
        self.kernels = sim_kernels(self, host or {})
        self.guard: SimGuard | None = None
        self._oracle = ReferenceDevice(spec, name)

    def launch(self, launch: Launch) -> None:
        """Compute one kernel call; devices that defer or record do so here."""
        for tensor, array in zip(launch.made, self.compute(launch), strict=True):
            tensor.put(self.keep(array))

    def compute(self, launch: Launch) -> list[NDArray[Any]]:
        """The numbers of one kernel call; devices with a fault of their own have it here."""
        return launch.compute()

    def seen(self, array: NDArray[Any], op: Op[..., Any]) -> NDArray[Any]:
        """A tensor or weight as the reference of an op sees it; devices that compute otherwise say so here."""
        return array

    def keep(self, array: NDArray[Any]) -> NDArray[Any]:
        """Memory of this device with the numbers of an array."""
        if self.guard is None:
            return array
        region = self.guard.region(array.shape, DTYPES[array.dtype.name])
        region.tensor[...] = array
        return region.tensor

    def guard_memory(self) -> MemoryGuard:
        return SimGuard(self)

    def upload(self, array: NDArray[Any], dtype: DType) -> Buffer:
        self.require(dtype)
        copy = np.array(array) if array.dtype == dtype.numpy else cast_to(array, dtype)
        return SimTensor(self, dtype, self.keep(copy))

    def download(self, buffer: Buffer) -> NDArray[Any]:
        return np.array(self.mine(buffer).array)

    def host_list(self, buffer: Buffer) -> NDArray[Any]:
        raise DeviceError(
            f"{self.spec} wants a host list and got a buffer; give a numpy array, or the same values beside the buffer "
            "by `host` of run"
        )

    def mine(self, buffer: Buffer) -> SimTensor:
        """A tensor, after checking that it is one of this device; DeviceError if not."""
        if not isinstance(buffer, SimTensor):
            raise DeviceError(f"{self.spec}: a {type(buffer).__name__} is no tensor buffer of this device")
        if buffer.home is not self:
            raise DeviceError(f"{self.spec}: a tensor of {buffer.home.spec} was given; move it through the host")
        return buffer

    def require(self, kind: DType) -> None:
        """DeviceError, with what to use instead, if this device has no such dtype."""
        if kind not in self.capabilities.dtypes:
            narrow = "a dtype of at most 32 bits, int32 for ids"
            advice = "runtime.dtype float16 or float32" if kind is bfloat16 else narrow
            raise DeviceError(f"{self.spec} has no {kind} tensors; use {advice}")

    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        held, how = converted(source, self.capabilities.dtypes, self.spec)
        if how:
            return SimWeight(self, self._oracle.prepare(held, uses), how)
        values = self._oracle.prepare(source, uses)
        return SimWeight(self, values, self._oracle.layout_of(values)[0])

    def layout_of(self, buffer: Buffer) -> tuple[str, int]:
        return buffer.layout, int(buffer.array.nbytes)

    def allocate_state(self, type: StateType, space: StateSpace) -> Buffer:
        if not type.paged:
            return SimState(self, self._oracle.allocate_state(type, space))
        if not type.quantized and type["scheme"] in DTYPES:
            self.require(DTYPES[type["scheme"]])
        self.parts(type)
        longest = self.capabilities.max_length
        if longest is not None and not self.capabilities.block_sizes and space.block_size > longest:
            raise DeviceError(f"{self.spec}: a region of {space.block_size} tokens is longer than the most, {longest}")
        try:
            return SimState(self, SimCache(type, space, self.layout))
        except MemoryError:
            raise OutOfMemory(f"{self.spec}: no room for {space.blocks} blocks; lower engine.cache_memory") from None
        except XinhengError as error:
            raise DeviceError(f"{self.spec}: {error}") from None

    def read_state(self, state: Buffer, type: StateType) -> tuple[NDArray[Any], ...]:
        self.synchronize()
        payload = state.payload
        pages: tuple[NDArray[Any], ...] = payload.whole() if isinstance(payload, SimCache) else payload
        return self._oracle.read_state(pages, type)

    def write_state(self, state: Buffer, type: StateType, pages: tuple[NDArray[Any], ...]) -> None:
        self.synchronize()
        if isinstance(state.payload, SimCache):
            state.payload.replaced(pages)
        else:
            self._oracle.write_state(state.payload, type, pages)

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        return tuple(self.mine(buffer).array.shape)

    def memory(self) -> MemoryStats:
        return host_memory()
