"""MindSpore's CPU target as a device; every operation has ended when its call returns, so that errors name their op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
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
    WeightPart,
    WeightSource,
)
from xinheng.core.hal.host import host_memory
from xinheng.core.ir.dtype import DType, bfloat16, cast_to, dtype, float16, float32
from xinheng.core.ir.types import StateType
from xinheng.core.ops import KVPages, LatentPages, SequenceSlots
from xinheng.core.schemes import scheme

from .handles import MindSporePagedKV, MindSporePagedLatent, MindSporePart, MindSporeSequenceState, MindSporeWeight
from .kernels import MINDSPORE_KERNELS
from .packed import is_held, planes_of
from .tensors import DTYPES, NAMES, to_array, to_tensor

ARITHMETIC = Arithmetic(ANY_ORDER, flush=True, determinism="D4")
"""float32 or wider; libraries below MindSpore flush subnormal numbers and choose the order by the size of a product,
which kernels keep the same for any batch."""


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
        parts = tuple(self._part(part) for part in source.parts)
        expanded = sorted({part.scheme for part in source.parts if not _kept(part.scheme)})
        layout = f"{', '.join(expanded)} expanded to float32" if expanded else "as stored"
        return MindSporeWeight(source.shape, parts, layout)

    def _part(self, part: WeightPart) -> MindSporePart:
        data, dense = part.load(), scheme(part.scheme).dense
        if is_held(part.scheme):
            return MindSporePart(part.scheme, part.rows, planes_of(part.scheme, np.ascontiguousarray(data)))
        if dense is not None and dense in _WEIGHTS:
            plain = to_tensor(np.ascontiguousarray(data).view(dense.numpy), dense)
        else:
            plain = ms.Tensor.from_numpy(scheme(part.scheme).unpack(data, np.float32))
        return MindSporePart(None, part.rows, (plain,))

    def layout_of(self, buffer: Buffer) -> tuple[str, int]:
        if isinstance(buffer, MindSporeWeight):
            return buffer.layout, buffer.nbytes
        return "as stored", int(buffer.nbytes)

    def allocate_state(self, type: StateType, space: StateSpace) -> Buffer:
        kind = dtype(type["dtype" if type.kind == "sequence_state" else "scheme"])
        if type.kind not in _STATES or kind not in _WEIGHTS:
            raise DeviceError(
                f"{self.spec}: no {type.kind} states of {kind}; set engine.cache_dtype to float32 or float16"
            )
        lead = (space.blocks, space.block_size)
        if type.kind == "sequence_state":
            return MindSporeSequenceState(self._cleared((space.blocks, *type["shape"]), kind, space), kind)
        if type.kind == "paged_latent":
            latent, rope = (self._cleared((*lead, type[d]), kind, space) for d in ("dim", "rope_dim"))
            return MindSporePagedLatent(latent, rope, kind)
        k, v = (self._cleared((*lead, type["heads"], type[d]), kind, space) for d in ("k_dim", "v_dim"))
        return MindSporePagedKV(k, v, kind)

    def _cleared(self, shape: tuple[int, ...], kind: DType, space: StateSpace) -> Any:
        """Zeroed memory; a bfloat16 state is held in float32, since the CPU target cannot write bfloat16 by index."""
        held = float32 if kind is bfloat16 else kind
        try:
            # fresh zero pages of the system take no memory until they are written
            return ms.Tensor.from_numpy(np.zeros(shape, held.numpy))
        except MemoryError:
            wanted = int(np.prod(shape, dtype=np.int64)) * held.numpy.itemsize
            raise OutOfMemory(
                f"{self.spec}: no room for {space.blocks} cache blocks ({wanted} bytes asked, "
                f"{self.memory().available} available); lower engine.cache_memory"
            ) from None

    def read_state(self, state: Buffer, type: StateType) -> tuple[NDArray[Any], ...]:
        made: tuple[NDArray[Any], ...] = _STATES[type.kind](
            *(cast_to(to_array(x), state.kind) for x in _tensors(state))
        )
        return made

    def write_state(self, state: Buffer, type: StateType, pages: tuple[NDArray[Any], ...]) -> None:
        for part, new in zip(_tensors(state), pages, strict=True):
            part.assign_value(to_tensor(new, NAMES[part.dtype]))

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        return tuple(buffer.shape)

    def memory(self) -> MemoryStats:
        return host_memory()

    def synchronize(self) -> None:
        ms.runtime.synchronize()

    def notes(self) -> tuple[str, ...]:
        return (
            "MindSpore's CPU target computes bfloat16 in float32 and keeps a bfloat16 cache in float32, "
            "twice the memory that is planned for it",
        )


_WEIGHTS = frozenset({float32, float16, bfloat16})
_STATES: dict[str, Any] = {"paged_kv": KVPages, "paged_latent": LatentPages, "sequence_state": SequenceSlots}


def _kept(name: str) -> bool:
    """Whether weights of a scheme stay in their stored form."""
    return is_held(name) or scheme(name).dense in _WEIGHTS


def _tensors(state: Buffer) -> list[Any]:
    """The tensors of a state, in the order references see them."""
    return [getattr(state, field.name) for field in fields(state) if field.name != "kind"]


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
