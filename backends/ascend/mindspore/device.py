"""MindSpore's CPU target as a device; every operation has ended when its call returns, so that errors name their op."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mindspore as ms
import numpy as np
from mindspore.device_context.cpu.op_tuning import threads_num
from numpy.typing import NDArray

from xinheng.core.errors import DeviceError, OutOfMemory
from xinheng.core.hal import (
    ANY_ORDER,
    Arithmetic,
    Buffer,
    Capabilities,
    Device,
    DeviceOptions,
    MemoryStats,
    StateSpace,
    WeightSource,
)
from xinheng.core.hal.host import host_memory
from xinheng.core.ir.dtype import DType, bfloat16, cast_to, dtype, float16, float32
from xinheng.core.ir.types import StateType
from xinheng.core.ops import KVPages

from .handles import DTYPES, NAMES, MindSporePagedKV, MindSporeWeight, to_array, to_tensor
from .kernels import MINDSPORE_KERNELS

ARITHMETIC = Arithmetic(ANY_ORDER, flush=True, determinism="D2")
"""float32 or wider; libraries below MindSpore flush subnormal numbers and choose the order by the size of a product."""


class MindSporeDevice(Device):
    """`ascend:cpu@mindspore`; its buffers are MindSpore tensors in host memory."""

    def __init__(self, options: DeviceOptions) -> None:
        ms.set_device("CPU")
        ms.runtime.launch_blocking()
        if options.threads is not None:
            _use_threads(options.threads)
        self.spec, self.name = "ascend:cpu@mindspore", f"MindSpore {ms.__version__}, CPU target"
        self.capabilities = Capabilities(
            frozenset(DTYPES), block_sizes=(16, 32, 64, 128), unified_memory=True, arithmetic=ARITHMETIC
        )
        self.kernels = MINDSPORE_KERNELS

    def upload(self, array: NDArray[Any], dtype: DType) -> Buffer:
        if dtype not in DTYPES:
            raise DeviceError(f"{self.spec}: this runtime has no dtype {dtype}; cast to one of {_names(DTYPES)}")
        return to_tensor(array, dtype)

    def download(self, buffer: Buffer) -> NDArray[Any]:
        return to_array(buffer)

    def prepare(self, source: WeightSource, uses: Sequence[str]) -> Buffer:
        stored = {part.scheme for part in source.parts} == {"float32"}
        values = ms.Tensor.from_numpy(source.unpack(np.float32))
        return MindSporeWeight(values, "as stored" if stored else "expanded to float32")

    def layout_of(self, buffer: Buffer) -> tuple[str, int]:
        return buffer.layout, int(buffer.values.nbytes)

    def allocate_state(self, type: StateType, space: StateSpace) -> Buffer:
        if type.kind != "paged_kv":
            raise DeviceError(f"{self.spec}: no {type.kind} states in this runtime; use a model with a paged_kv cache")
        kind = dtype(type["scheme"])
        if kind not in (float32, float16, bfloat16):
            raise DeviceError(f"{self.spec}: no caches of {kind}; set engine.cache_dtype to float32")
        held = float32 if kind is bfloat16 else kind
        lead = (space.blocks, space.block_size, type["heads"])
        try:
            # fresh zero pages of the system take no memory until they are written
            k, v = (ms.Tensor.from_numpy(np.zeros((*lead, type[d]), held.numpy)) for d in ("k_dim", "v_dim"))
        except MemoryError:
            raise OutOfMemory(
                f"{self.spec}: no room for {space.blocks} cache blocks; lower engine.cache_memory"
            ) from None
        return MindSporePagedKV(k, v, kind)

    def read_state(self, state: Buffer, type: StateType) -> tuple[NDArray[Any], ...]:
        kind = dtype(type["scheme"])
        return KVPages(*(cast_to(to_array(part), kind) for part in (state.k, state.v)))

    def write_state(self, state: Buffer, type: StateType, pages: tuple[NDArray[Any], ...]) -> None:
        for part, new in zip((state.k, state.v), pages, strict=True):
            part.assign_value(to_tensor(new, NAMES[part.dtype]))

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        return tuple(buffer.shape)

    def memory(self) -> MemoryStats:
        return host_memory()

    def synchronize(self) -> None:
        ms.runtime.synchronize()

    def notes(self) -> tuple[str, ...]:
        return (
            "MindSpore's CPU target reads weights in float32 and keeps a bfloat16 cache in float32, "
            "twice the memory that is planned for it",
        )


@cache
def _use_threads(count: int) -> None:
    """Set how many threads operators use, which MindSpore does once per process."""
    try:
        threads_num(count)
    except (RuntimeError, ValueError) as error:
        raise DeviceError(
            f"runtime.threads is {count}, which MindSpore does not take ({error}); it takes one number of threads per "
            "process, so that another one needs engine.runner = subprocess"
        ) from error


def _names(kinds: dict[DType, Any]) -> str:
    return ", ".join(kind.name for kind in kinds)
